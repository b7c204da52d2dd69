"""Keep what the marks in one window show: where changes came from, and what came back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.planning._marked_transactions import MarkedChanges
from sluice.etl.changes.planning._payloads import SharedPayload


class WindowMarks:
    """Where the changes of a window came from."""

    def __init__(
        self, changes: pa.Table, marked: MarkedChanges | None, channels: Channels, done: int
    ) -> None:
        """Take over what `find_marked` returned for a window that begins with `changes`.

        What was committed through `done` (TSO) is downstream already, and isn't counted.
        """
        self._starts = changes["start_ts"].to_numpy()
        self._commits = changes["commit_ts"].to_numpy()
        count = len(self._starts)
        self._left_out = np.zeros(count, bool) if marked is None else marked.left_out[:count]
        self._channels = np.full(count, channels.own) if marked is None else marked.channels[:count]
        self.is_ring = channels.is_ring
        """Whether marks tell origins apart."""
        returned = np.zeros(0, np.int64) if marked is None else marked.start_ts
        first = np.unique(self._starts, return_index=True)[1]
        is_returned = np.isin(self._starts[first], returned)
        self._returned = np.sort(self._commits[first[is_returned]])
        self._counted = int(np.searchsorted(self._returned, done, side="right"))

    def kept(self, changes: pa.Table, begun: SharedPayload | None) -> pa.Table:
        """Return the changes without those that came from downstream.

        Nor those of `begun` that are downstream, while others of their commit_ts are not.
        """
        kept = ~self._left_out
        if begun is not None and begun.channels:
            kept &= (self._commits != begun.ts) | ~np.isin(self._channels, begun.channels)
        self._starts, self._channels = self._starts[kept], self._channels[kept]
        return changes if kept.all() else changes.filter(pa.array(kept))

    def channels_of(self, changes: pa.Table) -> np.ndarray:
        """Return the channel of each change (int64), which `kept` returned with others."""
        starts, first = np.unique(self._starts, return_index=True)
        places = np.searchsorted(starts, changes["start_ts"].to_numpy())
        channels: np.ndarray = self._channels[first[places]]
        return channels

    def count_returned(self, through: int) -> int:
        """Return how many transactions came from downstream, after the last call, to `through`."""
        before = self._counted
        found = int(np.searchsorted(self._returned, through, side="right"))
        self._counted = max(before, found)
        return self._counted - before
