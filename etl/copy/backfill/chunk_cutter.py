"""Cut the tables of a backfill into chunks, as large as they may be at the moment."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sluice.etl.copy.backfill.plan import BackfillPlan
from sluice.etl.copy.backfill.progress_state import BackfillChunk, BackfillState
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.errors import BackfillError
from sluice.tidb.schema import Table

__all__ = ["ChunkCutter"]

_Key = list[str] | None
"""Values of a range's key as literals, None: no limit."""


class ChunkCutter:
    """Cut the tables of a plan; `max_rows` returns the rows that a chunk may have now."""

    def __init__(
        self,
        upstream: UpstreamCatalog,
        plan: BackfillPlan,
        state: BackfillState,
        max_rows: Callable[[], int],
    ) -> None:
        self._upstream = upstream
        self._plan = plan
        self._state = state
        self._max_rows = max_rows

    def definition(self, place: int, at_ts: int | None = None) -> Table | None:
        """Return a table of the plan as it is now, or was at a timestamp; None if it is gone.

        Raises BackfillError if it isn't what was planned.
        """
        plan = self._plan.tables[place]
        tables = self._upstream.definitions(at_ts or self._upstream.now()).tables
        found = next((t for t in tables if t.full_name == plan.name), None)
        if found is None:
            if any(t.id == plan.table_id for t in tables):
                raise BackfillError(f"{plan.name} has another name now: start over with that name")
            return None
        if tuple(column.name for column in range_key(found)) != plan.key:
            raise BackfillError(
                f"the key of {plan.name} has changed: start over, with the chunks of the new key"
            )
        return found

    def bound(self, table: Table, low: _Key, high: _Key) -> _Key:
        """Return the key behind the next chunk of a range; None if the range is one chunk."""
        key = range_key(table)
        if not key:
            return None
        return self._upstream.key_behind(table, key, (low, high), self._max_rows())

    def reopen(self, busy: Collection[int]) -> BackfillChunk | None:
        """Return a chunk that failed, cut again if chunks have become smaller.

        `busy`: numbers of chunks that are being copied. None if there is no such chunk.
        """
        for number, chunk in self._state.open.items():
            if number not in busy:
                table = None if chunk.condition else self.definition(chunk.table)
                if (
                    table is not None
                    and (bound := self.bound(table, chunk.low, chunk.high)) is not None
                ):
                    self._state.next_chunk(chunk.table, bound, chunk.high)
                    chunk.high = bound
                return chunk
        return None
