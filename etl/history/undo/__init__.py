"""Take past transactions back: the SQL for it, and what prevents it."""

from sluice.etl.history.errors import TooManyChangesError, UndoError
from sluice.etl.history.undo.apply import apply_script
from sluice.etl.history.undo.check import Conflict, DryRun, dry_run, leave_conflicts
from sluice.etl.history.undo.inverse import InverseChanges, invert_changes
from sluice.etl.history.undo.preview import RowPreview, preview
from sluice.etl.history.undo.range import read_range
from sluice.etl.history.undo.script import for_upstream, script
from sluice.etl.history.undo.statements import TableUndoSql, UndoStatement
from sluice.etl.history.undo.transaction import PastChanges, TouchedTable, read_transaction

__all__ = [
    "Conflict",
    "DryRun",
    "InverseChanges",
    "PastChanges",
    "RowPreview",
    "TableUndoSql",
    "TooManyChangesError",
    "TouchedTable",
    "UndoError",
    "UndoStatement",
    "apply_script",
    "dry_run",
    "for_upstream",
    "invert_changes",
    "leave_conflicts",
    "preview",
    "read_range",
    "read_transaction",
    "script",
]
