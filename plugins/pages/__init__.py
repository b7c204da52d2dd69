"""One module a page: its JSON."""

from plugins.pages.jobs import router as jobs

ROUTERS = (jobs,)

__all__ = ["ROUTERS"]
