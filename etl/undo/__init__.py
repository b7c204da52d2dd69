"""One past transaction taken back: the SQL for it, and what stands in its way."""

from etl.undo.check import Conflict, DryRun, dry_run
from etl.undo.errors import UndoError
from etl.undo.reverse import Reverse, reverse
from etl.undo.script import for_upstream, script
from etl.undo.statements import Statement, TableSql
from etl.undo.transaction import TouchedTable, Transaction, read_transaction

__all__ = [
    "Conflict",
    "DryRun",
    "Reverse",
    "Statement",
    "TableSql",
    "TouchedTable",
    "Transaction",
    "UndoError",
    "dry_run",
    "for_upstream",
    "read_transaction",
    "reverse",
    "script",
]
