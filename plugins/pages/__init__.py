"""One module a page: its JSON."""

from plugins.pages.jobs import router as jobs
from plugins.pages.overview import router as overview
from plugins.pages.time import router as time

ROUTERS = (overview, jobs, time)

__all__ = ["ROUTERS"]
