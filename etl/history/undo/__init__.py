"""Take one past transaction back: the SQL for it, and what prevents it."""

from sluice.etl.history.errors import UndoError
from sluice.etl.history.undo.check import Conflict, DryRun, dry_run
from sluice.etl.history.undo.inverse import InverseChanges, invert_changes
from sluice.etl.history.undo.script import for_upstream, script
from sluice.etl.history.undo.statements import TableUndoSql, UndoStatement
from sluice.etl.history.undo.transaction import PastTransaction, TouchedTable, read_transaction

__all__ = [
    "Conflict",
    "DryRun",
    "InverseChanges",
    "PastTransaction",
    "TableUndoSql",
    "TouchedTable",
    "UndoError",
    "UndoStatement",
    "dry_run",
    "for_upstream",
    "invert_changes",
    "read_transaction",
    "script",
]
