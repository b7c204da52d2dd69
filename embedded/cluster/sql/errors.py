"""Errors as a TiDB's SQL port sends them."""

from __future__ import annotations

from errors import Signal

_STATES = {1045: "28000", 1046: "3D000", 1049: "42000", 1054: "42S22", 1064: "42000", 1146: "42S02", 1193: "HY000"}


class SQLError(Signal):
    """`number`: MySQL's or TiDB's error number, with TiDB's text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number
        self.state = _STATES.get(number, "HY000")


def syntax_error(near: str) -> SQLError:
    """1064, at what couldn't be read."""
    return SQLError(1064, f'You have an error in your SQL syntax; near "{near[:80]}" (the stand-in knows little SQL)')
