"""Looking through the past: which transactions and DDL did what, and when."""

from etl.find.errors import ConditionError, FindError
from etl.find.found import Found, FoundDdl, FoundTransaction, TableRows
from etl.find.logs import Past, Stretch
from etl.find.query import KINDS, Query
from etl.find.row_text import row_text
from etl.find.run import find

__all__ = [
    "KINDS",
    "ConditionError",
    "FindError",
    "Found",
    "FoundDdl",
    "FoundTransaction",
    "Past",
    "Query",
    "Stretch",
    "TableRows",
    "find",
    "row_text",
]
