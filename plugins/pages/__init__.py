"""One module a page: its JSON."""

from plugins.pages.jobs import router as jobs
from plugins.pages.overview import router as overview
from plugins.pages.quality import router as quality
from plugins.pages.tables import router as tables
from plugins.pages.time import router as time
from plugins.pages.transactions import router as transactions

ROUTERS = (overview, tables, transactions, jobs, quality, time)

__all__ = ["ROUTERS"]
