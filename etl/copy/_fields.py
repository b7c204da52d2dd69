"""Find where the fields of rows lie in a block of text, for all rows at once.

Bytes with a meaning are looked up in one pass. A backslash takes the meaning of the byte behind
it, so of a run of backslashes every other one counts. Between quotes nothing counts: a byte with
an odd number of quotes before it is inside. Doubled quotes come out right by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BACKSLASH = ord("\\")


@dataclass(frozen=True, slots=True)
class FieldPositions:
    """The fields of `len(start)` rows: positions in `data`, [row, column].

    The quotes around a field are in it.
    """

    data: Bytes
    start: Ints
    end: Ints


def quoted(raw: bytes, *, is_shown: bool) -> str:
    """Return a part of a dump for messages, which show none of a masked column."""
    return repr(raw.decode("utf-8", "backslashreplace")) if is_shown else "(masked)"


def special_byte_table(special: bytes) -> Mask:
    """Return a table for `positions_outside_quotes`: the byte values that count."""
    table = np.zeros(256, np.bool_)
    table[list(special)] = True
    return table


def active_escapes(backslashes: Ints) -> Ints:
    """Return the positions (ascending) of backslashes that aren't themselves escaped."""
    if not len(backslashes):
        return backslashes
    index = np.arange(len(backslashes))
    begins = np.empty(len(backslashes), np.bool_)
    begins[0] = True
    np.not_equal(np.diff(backslashes), 1, out=begins[1:])
    run = np.maximum.accumulate(np.where(begins, index, 0))
    escaping: Ints = backslashes[(index - run) & 1 == 0]
    return escaping


def positions_outside_quotes(data: Bytes, table: Mask, quote: int, *, escapes: bool) -> Ints:
    """Return positions of bytes of `table` neither escaped nor between quotes, ascending.

    Quotes and backslashes left out. `quote` -1: there are no quotes. `escapes`: a backslash is one.
    """
    at = np.flatnonzero(table[data])
    kind = data[at]
    if escapes:
        backslash = kind == BACKSLASH
        if backslash.any():
            escaped = np.zeros(len(data) + 1, np.bool_)
            escaped[active_escapes(at[backslash]) + 1] = True
            keep = ~(backslash | escaped[at])
            at, kind = at[keep], kind[keep]
    if quote < 0:
        return at
    quotes = kind == quote
    inside = np.cumsum(quotes, dtype=np.int64) & 1
    found: Ints = at[(inside == 0) & ~quotes]
    return found
