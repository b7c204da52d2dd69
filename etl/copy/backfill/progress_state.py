"""Keep how far a backfill is in one small file of its job, for the process that resumes it.

    jobs/<id>/frontier.json

A table is cut from its first key to its `end`; what lies below `low`, and from `end` on, is done,
but for the chunks that are open. The file is written before an aligned chunk is made, and after its
result was seen: an older state, of a process that was taken for dead and isn't, only has rows
copied again that are there already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sluice.etl.copy.backfill.extent import planned_work
from sluice.etl.copy.backfill.plan import BackfillTablePlan
from sluice.etl.downstream.chunk_results import ChunkResult
from sluice.relay.jobs import JobCounts, TableProgress
from sluice.relay.storage import Storage

_MAX_EXAMPLES = 50
_COUNTERS = ("rows", "same", "inserted", "replaced", "deleted", "displaced", "kept")


@dataclass(slots=True)
class BackfillChunk:
    """A range [low, high) of a table's key, as literals; None: no limit.

    `table`: its place in the plan. `condition`: in place of the range.
    """

    number: int
    table: int
    low: list[str] | None
    high: list[str] | None
    condition: str = ""


@dataclass(slots=True)
class BackfillTableState:
    """A backfill table state.

    `low`: where the next chunk begins; `end`: where the last one ends, None while that isn't fixed
    (`sluice.etl.copy.backfill.chunk_cutter`); `taken`: how many of the conditions have their chunk.

    `is_cut`: no chunk comes any more; `is_over`: and all are done.
    """

    low: list[str] | None = None
    end: list[str] | None = None
    taken: int = 0
    is_begun: bool = False
    is_cut: bool = False
    is_over: bool = False
    chunks: int = 0
    bytes: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    examples: list[str] = field(default_factory=list)

    def add(self, found: ChunkResult, size: int) -> None:
        """Count a chunk, of which `size` bytes were read, as done."""
        self.chunks += 1
        self.bytes += size
        for name in _COUNTERS:
            self.counts[name] += getattr(found, name)
        self.examples += found.examples[: _MAX_EXAMPLES - len(self.examples)]


@dataclass(slots=True)
class BackfillState:
    """The state of every table of the plan, in its order, and the open chunks, by number."""

    tables: list[BackfillTableState]
    open: dict[int, BackfillChunk] = field(default_factory=dict)
    numbers: int = 0
    """Number of chunks so far."""

    def next_chunk(
        self, table: int, low: list[str] | None, high: list[str] | None
    ) -> BackfillChunk:
        """Open a new chunk."""
        self.numbers += 1
        chunk = self.open[self.numbers] = BackfillChunk(self.numbers, table, low, high)
        return chunk

    def next_of(self, table: int, conditions: Sequence[str]) -> BackfillChunk:
        """Open a chunk for the next one of a table's conditions."""
        state = self.tables[table]
        chunk = self.next_chunk(table, None, None)
        chunk.condition = conditions[state.taken]
        state.taken += 1
        state.is_cut = state.taken == len(conditions)
        return chunk

    def results(self, plans: Sequence[BackfillTablePlan]) -> dict[str, Any]:
        """Return what was done so far, by table, as JSON values."""
        return {
            plan.name: {
                **state.counts,
                "chunks": state.chunks,
                "bytes": state.bytes,
                "examples": list(state.examples),
                "over": state.is_over,
            }
            for plan, state in zip(plans, self.tables, strict=True)
        }

    def progress(
        self, plans: Sequence[BackfillTablePlan], *, is_known: bool
    ) -> dict[str, TableProgress]:
        """Return what there is to do, and what is done, by table.

        `is_known`: the plan's sizes are those of what is copied.
        """
        found: dict[str, TableProgress] = {}
        for plan, state in zip(plans, self.tables, strict=True):
            rows = state.counts["rows"]
            if not is_known:
                found[plan.name] = TableProgress(JobCounts(rows, state.bytes, state.chunks))
                continue
            done = planned_work(plan, rows=rows, is_over=state.is_over)
            size, extra = planned_work(plan)
            found[plan.name] = TableProgress(
                JobCounts(rows, state.bytes, state.chunks, *done),
                size,
                0,
                plan.rows or None,
                extra,
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values; `from_json` is the inverse."""
        return asdict(self) | {"open": [asdict(chunk) for chunk in self.open.values()]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the state from `to_json`'s values."""
        chunks = [BackfillChunk(**chunk) for chunk in document["open"]]
        return cls(
            [BackfillTableState(**state) for state in document["tables"]],
            {chunk.number: chunk for chunk in chunks},
            document["numbers"],
        )


class BackfillStateFile:
    """The file that keeps the state."""

    def __init__(self, storage: Storage, job: str) -> None:
        self._storage = storage
        self._path = f"jobs/{job}/frontier.json"

    def load(self, tables: int) -> BackfillState:
        """Return the state that was written last; an empty one if none was."""
        try:
            return BackfillState.from_json(json.loads(self._storage.read(self._path)))
        except FileNotFoundError:
            return BackfillState([BackfillTableState() for _ in range(tables)])

    def keep(self, frontier: BackfillState) -> None:
        """Write the state durably. Raises OSError."""
        self._storage.replace(self._path, json.dumps(frontier.to_json()).encode() + b"\n")
