"""Errors as a TiDB's SQL port sends them."""

from __future__ import annotations

from sluice.errors import Signal
from sluice.etl.changes import server_errors

_STATES = {
    server_errors.ACCESS_DENIED: "28000",
    server_errors.NO_DATABASE: "3D000",
    server_errors.UNKNOWN_DATABASE: "42000",
    server_errors.UNKNOWN_COLUMN: "42S22",
    server_errors.SYNTAX_ERROR: "42000",
    server_errors.NO_SUCH_TABLE: "42S02",
}


class SQLError(Signal):
    """An SQL error; `number`: MySQL's or TiDB's error number, with TiDB's text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number
        self.state = _STATES.get(number, "HY000")


def syntax_error(near: str) -> SQLError:
    """Return SYNTAX_ERROR, at what couldn't be read."""
    return SQLError(
        server_errors.SYNTAX_ERROR,
        f'You have an error in your SQL syntax; near "{near[:80]}" (the stand-in knows little SQL)',
    )
