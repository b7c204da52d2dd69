"""One module a page: its JSON."""

from sluice.plugins.pages.doctor import router as doctor
from sluice.plugins.pages.jobs import router as jobs
from sluice.plugins.pages.overview import router as overview
from sluice.plugins.pages.quality import router as quality
from sluice.plugins.pages.tables import router as tables
from sluice.plugins.pages.time import router as time
from sluice.plugins.pages.transactions import router as transactions

ROUTERS = (overview, tables, transactions, jobs, quality, time, doctor)

__all__ = ["ROUTERS"]
