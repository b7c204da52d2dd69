"""What may be removed of the relay log and of the archive, and from when to when one can restore."""

from etl.retain.errors import NotArchivedError, RetainError
from etl.retain.run import RetainSummary, retain

__all__ = ["NotArchivedError", "RetainError", "RetainSummary", "retain"]
