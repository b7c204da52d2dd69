"""Find what people are notified of: causes that an operator should know, and a digest of a day."""

from sluice.etl.operate.notices.causes import KINDS, Causes, TaskReport, find_causes
from sluice.etl.operate.notices.due import due_notices, mark_sent

__all__ = ["KINDS", "Causes", "TaskReport", "due_notices", "find_causes", "mark_sent"]
