"""One module a page: its JSON."""

from plugins.pages.jobs import router as jobs
from plugins.pages.overview import router as overview

ROUTERS = (overview, jobs)

__all__ = ["ROUTERS"]
