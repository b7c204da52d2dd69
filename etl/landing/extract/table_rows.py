"""Count the changes of each table, and note between which commits they are.

A window's record and its schema are made from that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_SUMMED = (np.add, np.minimum, np.maximum, np.minimum, np.maximum)


class TableRows(NamedTuple):
    """The number of a table's changes inside, the first and last commit_ts among them.

    With them come the oldest and newest schema version by which they were made.
    """

    rows: int
    first_commit_ts: int
    last_commit_ts: int
    oldest_version: int
    newest_version: int


class TableTally:
    """Add up batch by batch, in whole arrays: a batch may have rows of thousands of tables."""

    def __init__(self) -> None:
        self._found: list[Ints] = []

    def add(self, found: Ints) -> None:
        """Add rows (table id, fields of TableRows); a table may come more than once."""
        self._found.append(_sum_by_table(found))

    def tables(self) -> dict[int, TableRows]:
        """Return the rows by table id, ascending."""
        if not self._found:
            return {}
        if len(self._found) > 1:
            self._found = [_sum_by_table(np.concatenate(self._found))]
        (found,) = self._found
        return {row[0]: TableRows._make(row[1:]) for row in found.tolist()}


def _sum_by_table(found: Ints) -> Ints:
    """Return a row for each table, by id."""
    ids = found[:, 0]
    if len(ids) > 1:
        order = np.argsort(ids, kind="stable")
        found, ids = found[order], ids[order]
    begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: len(ids)])
    if len(begins) == len(ids):
        return found
    return np.column_stack(
        [ids[begins], *(how.reduceat(found[:, i], begins) for i, how in enumerate(_SUMMED, 1))]
    )
