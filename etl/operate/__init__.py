"""What operators ask of a running pipeline, and what they are shown."""

from etl.operate.orders import identity, tso_text
from etl.operate.takeover_check import STOPS, check
from etl.operate.window_view import RowChange, TablesAt, decode, describe, find_window, newest, row_changes

__all__ = [
    "STOPS",
    "RowChange",
    "TablesAt",
    "check",
    "decode",
    "describe",
    "find_window",
    "identity",
    "newest",
    "row_changes",
    "tso_text",
]
