"""The process that lands, or applies, and outlasts the task that began it: the next run's task takes it up."""

from etl.resident.attend import ResidentLostError, attend
from etl.resident.wish import Wish

__all__ = ["ResidentLostError", "Wish", "attend"]
