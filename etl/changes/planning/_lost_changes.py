"""Take out of changes what lost against the downstream's own, where both sides may write.

An update that moves a row to another key may lose at one of the two: the other half goes
downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from sluice.etl.changes.planning._selected_rows import inserted_row, old_half, with_moved
from sluice.relay import DELETE, INSERT
from sluice.tidb.schema import Table

LOST_BOTH, LOST_OLD, LOST_NEW = 0, 1, 2


class LostChange(NamedTuple):
    """A change, or half of an update, that doesn't go downstream.

    `part`: LOST_BOTH for the whole change, LOST_OLD if its old key stays as it is, LOST_NEW for its
    new one.
    """

    commit_ts: int
    start_ts: int
    position: int
    part: int = LOST_BOTH

    @classmethod
    def from_json(cls, document: list[Any]) -> Self:
        """Read what JSON makes of one."""
        return cls(*document)


def without_lost(
    changes: pa.Table, lost: Collection[LostChange], table_of: Callable[[int], Table]
) -> pa.Table:
    """Return changes (PART_SCHEMA) without what is lost; `table_of`: a table by its id."""
    whole = changes.combine_chunks()
    if not lost or not whole.num_rows:
        return whole
    starts = whole["start_ts"].to_numpy()
    some = np.flatnonzero(np.isin(starts, [each.start_ts for each in lost]))
    parts = {each[:3]: each.part for each in lost}
    gone, moved = [], {}
    for place, change in zip(some.tolist(), whole.take(pa.array(some)).to_pylist(), strict=True):
        part = parts.get((change["commit_ts"], change["start_ts"], change["position"]))
        if part == LOST_BOTH:
            gone.append(place)
        elif part == LOST_NEW:
            moved[place] = DELETE, old_half(change["row"])
        elif part == LOST_OLD:
            moved[place] = INSERT, inserted_row(table_of(change["table_id"]), change["row"])
    kept = np.ones(whole.num_rows, bool)
    kept[gone] = False
    return with_moved(whole, moved).filter(pa.array(kept))
