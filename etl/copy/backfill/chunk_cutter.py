"""Cut the tables of a backfill into chunks, as large as they may be at the moment.

**Where a table ends.** Rows may be appended faster than chunks are copied, so a job that goes on to
the last row never comes to it. A table of more than one chunk gets an end when its first chunk is
cut: its largest key then, E. The first chunk is the range from E on, without an upper limit (or up
to `--to-key`). The ranges below E follow, and end there whatever is appended.

That first chunk can't be left out, though rows upstream behind E are younger than the job and come
by replication. Downstream there may be rows behind E from before the job, which somebody wrote
there or a deletion that was lost left there, and a later insert upstream of the same key would meet
them. At the chunk's timestamp S its range becomes what it is upstream, E's own row and surplus rows
included. From S on replication alone changes it, as it does with every range that is done. So after
the last chunk each key lies in a range that was as upstream at some timestamp of the job, which is
what a backfill promises.

It comes first because it holds what was appended between E and S, half a second as a rule. At the
end of the job it would hold all that was appended meanwhile. If the chunk fails and has become too
large for another attempt, E moves up: the range from the old E to the new one, of so many rows as
there are, becomes a chunk to be cut like others, and the open one begins at the new E.

Rows that are inserted below E (random keys, or many series in one key) still come to the chunks
that aren't cut yet: a place where rows are inserted without end faster than chunks are copied is
followed. `sluice jobs show` shows more rows than the plan's then.
"""

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

    def next_chunk(self, place: int, table: Table) -> BackfillChunk:
        """Open the next chunk of a table that isn't cut to its end; the first is the open one."""
        plan, state = self._plan.tables[place], self._state.tables[place]
        if plan.only:
            return self._state.next_of(place, plan.only)
        bound = self.bound(table, state.low, state.end or plan.high)
        if bound is not None and state.end is None:
            state.end = self._upstream.last_key(table, range_key(table), (state.low, plan.high))
            if state.end is not None:
                return self._state.next_chunk(place, state.end, plan.high)
        chunk = self._state.next_chunk(place, state.low, bound or state.end or plan.high)
        state.low, state.is_cut = bound, bound is None
        return chunk

    def reopen(self, busy: Collection[int]) -> BackfillChunk | None:
        """Return a chunk that failed, cut again if chunks have become smaller.

        `busy`: numbers of chunks that are being copied. None if there is no such chunk.
        """
        for number, chunk in self._state.open.items():
            if number not in busy:
                table = None if chunk.condition else self.definition(chunk.table)
                if table is not None:
                    self._cut_again(chunk, table)
                return chunk
        return None

    def _cut_again(self, chunk: BackfillChunk, table: Table) -> None:
        bound = self.bound(table, chunk.low, chunk.high)
        if bound is None:
            return
        if chunk.high != self._plan.tables[chunk.table].high:
            self._state.next_chunk(chunk.table, bound, chunk.high)
            chunk.high = bound
            return
        # Rows are appended to the open one: it keeps those behind the largest key of this moment.
        end = self._upstream.last_key(table, range_key(table), (chunk.low, chunk.high))
        if end is not None and end != chunk.low:
            self._state.next_chunk(chunk.table, chunk.low, end)
            chunk.low = end
