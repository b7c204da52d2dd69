"""Search the history: which transactions and DDL did what, and when.

What only the client needs is imported on first use: Spark's workers import this package, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.history.errors import ConditionError, FindError
from sluice.etl.history.find.display_value import row_text
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.history.find.activity import Activity, recent_activity
    from sluice.etl.history.find.bursts import Incident, find_incidents
    from sluice.etl.history.find.display_value import DisplayValue
    from sluice.etl.history.find.names import check_table_globs
    from sluice.etl.history.find.one_transaction import (
        ChangedRow,
        ChangedValue,
        NoTransactionError,
        TransactionView,
        load_transaction,
        load_value,
    )
    from sluice.etl.history.find.query import KINDS, SearchQuery
    from sluice.etl.history.find.recent import RecentPage, SkippedWindow, TimeBudget, recent_page
    from sluice.etl.history.find.results import (
        FoundDdl,
        FoundGroup,
        FoundTransaction,
        SearchResults,
        TableRows,
        first_groups,
    )
    from sluice.etl.history.find.run import search
    from sluice.etl.history.find.scan import WindowSearch

__all__ = [
    "KINDS",
    "Activity",
    "ChangedRow",
    "ChangedValue",
    "ConditionError",
    "DisplayValue",
    "FindError",
    "FoundDdl",
    "FoundGroup",
    "FoundTransaction",
    "Incident",
    "NoTransactionError",
    "RecentPage",
    "SearchQuery",
    "SearchResults",
    "SkippedWindow",
    "TableRows",
    "TimeBudget",
    "TransactionView",
    "WindowSearch",
    "check_table_globs",
    "find_incidents",
    "first_groups",
    "load_transaction",
    "load_value",
    "recent_activity",
    "recent_page",
    "row_text",
    "search",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "Activity": "sluice.etl.history.find.activity",
        "recent_activity": "sluice.etl.history.find.activity",
        "Incident": "sluice.etl.history.find.bursts",
        "find_incidents": "sluice.etl.history.find.bursts",
        "SearchResults": "sluice.etl.history.find.results",
        "FoundDdl": "sluice.etl.history.find.results",
        "FoundGroup": "sluice.etl.history.find.results",
        "first_groups": "sluice.etl.history.find.results",
        "WindowSearch": "sluice.etl.history.find.scan",
        "FoundTransaction": "sluice.etl.history.find.results",
        "ChangedRow": "sluice.etl.history.find.one_transaction",
        "ChangedValue": "sluice.etl.history.find.one_transaction",
        "KINDS": "sluice.etl.history.find.query",
        "check_table_globs": "sluice.etl.history.find.names",
        "SkippedWindow": "sluice.etl.history.find.recent",
        "RecentPage": "sluice.etl.history.find.recent",
        "NoTransactionError": "sluice.etl.history.find.one_transaction",
        "TimeBudget": "sluice.etl.history.find.recent",
        "SearchQuery": "sluice.etl.history.find.query",
        "DisplayValue": "sluice.etl.history.find.display_value",
        "TableRows": "sluice.etl.history.find.results",
        "TransactionView": "sluice.etl.history.find.one_transaction",
        "search": "sluice.etl.history.find.run",
        "recent_page": "sluice.etl.history.find.recent",
        "load_transaction": "sluice.etl.history.find.one_transaction",
        "load_value": "sluice.etl.history.find.one_transaction",
    },
)
