"""Looking through the past: which transactions and DDL did what, and when.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.find.errors import ConditionError, FindError
from etl.find.row_text import row_text
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.find.backwards import LargeWindow, Newest, Patience, newest
    from etl.find.found import Found, FoundDdl, FoundTransaction, TableRows
    from etl.find.logs import Past, Stretch
    from etl.find.names import check_names
    from etl.find.one_transaction import (
        ChangedRow,
        ChangedValue,
        NoTransactionError,
        TransactionView,
        view_transaction,
        whole_value,
    )
    from etl.find.query import KINDS, Query
    from etl.find.run import find
    from etl.find.shown_value import ShownValue

__all__ = [
    "KINDS",
    "ChangedRow",
    "ChangedValue",
    "ConditionError",
    "FindError",
    "Found",
    "FoundDdl",
    "FoundTransaction",
    "LargeWindow",
    "Newest",
    "NoTransactionError",
    "Past",
    "Patience",
    "Query",
    "ShownValue",
    "Stretch",
    "TableRows",
    "TransactionView",
    "check_names",
    "find",
    "newest",
    "row_text",
    "view_transaction",
    "whole_value",
]

__getattr__ = on_first_use(
    __name__,
    {
        "Found": "etl.find.found",
        "FoundDdl": "etl.find.found",
        "FoundTransaction": "etl.find.found",
        "ChangedRow": "etl.find.one_transaction",
        "ChangedValue": "etl.find.one_transaction",
        "KINDS": "etl.find.query",
        "check_names": "etl.find.names",
        "LargeWindow": "etl.find.backwards",
        "Newest": "etl.find.backwards",
        "NoTransactionError": "etl.find.one_transaction",
        "Past": "etl.find.logs",
        "Patience": "etl.find.backwards",
        "Query": "etl.find.query",
        "Stretch": "etl.find.logs",
        "ShownValue": "etl.find.shown_value",
        "TableRows": "etl.find.found",
        "TransactionView": "etl.find.one_transaction",
        "find": "etl.find.run",
        "newest": "etl.find.backwards",
        "view_transaction": "etl.find.one_transaction",
        "whole_value": "etl.find.one_transaction",
    },
)
