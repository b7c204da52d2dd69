"""Define what the apply loop asks of a sink: a checkpoint, and execution of prepared steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sluice.errors import SluiceError
from sluice.etl.changes.steps import ScopedDdl, Step
from sluice.etl.downstream import Checkpoint, ChunkResult
from sluice.etl.downstream.sinks.chunk_writer import AlignedChunkRows
from sluice.relay import AlignedChunk

log = logging.getLogger("sluice.apply")


class ApplyError(SluiceError):
    """The downstream isn't what the changes expect; names table, key and commit_ts, with a hint.

    `found` is the downstream's own message alone.
    """

    hint = "bring the downstream to what the changes expect, then let the task go on"
    topic = ""
    """The topic that the error is about, if it is about one."""
    commit_ts = 0
    """The commit_ts of the transaction that the error is about, 0: of several, or unknown."""

    def __init__(self, message: str, found: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.found = found


class BeforeCommit(Protocol):
    """Check operators' orders before a commit."""

    def __call__(self, step: Step, *, begun: bool = False) -> None:
        """Raise if `step` (a commit, a DDL or an in-flight batch) must not come: `recover` is next.

        `begun`: a part of it is downstream, so it isn't paused, but it may have to be prepared
        again.
        """


def always_confirm(step: Step, *, begun: bool = False) -> None:
    """Allow every step: a BeforeCommit for sinks without orders."""


class TopicCounts(NamedTuple):
    """Messages sent to a topic, and the bytes of their keys and values."""

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: TopicCounts) -> TopicCounts:  # type: ignore[override]
        return TopicCounts(self.messages + other.messages, self.bytes + other.bytes)


@dataclass(slots=True)
class SinkResult:
    """Totals of one `Sink.run`; times are in seconds.

    `commits` are checkpoints made durable, `rows` net rows, `changes` row changes upstream.
    `round_trip_s` is the time of the downstream's fastest answer, 0 if unknown.
    """

    rows: int = 0
    changes: int = 0
    ddls: int = 0
    commits: int = 0
    send_s: float = 0.0
    commit_s: float = 0.0
    ddl_s: float = 0.0
    round_trip_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    topics: dict[str, TopicCounts] = field(default_factory=dict)
    """What each topic got, of a sink that has topics."""

    def warn(self, warnings: Iterable[str]) -> None:
        """Add a commit step's warnings, and log them."""
        for warning in warnings:
            log.warning("%s", warning)
            self.warnings.append(warning)

    def add_topics(self, topics: Mapping[str, TopicCounts]) -> None:
        """Add what topics got until a commit."""
        for name, counts in topics.items():
            self.topics[name] = self.topics.get(name, TopicCounts()) + counts

    def add_stages(self, timings_ms: Mapping[str, float]) -> None:
        """Add a commit step's timings of the preparing job."""
        for stage, milliseconds in timings_ms.items():
            self.stages_ms[stage] = self.stages_ms.get(stage, 0.0) + milliseconds


class CheckpointGuard(Protocol):
    """Check whose the checkpoint is, see `sluice.etl.downstream.ownership.exclusivity`."""

    pipeline: str
    """The owner that checkpoints name."""

    def check_checkpoint(self, found: Checkpoint | None) -> None:
        """Raise an error if this pipeline must not continue from the checkpoint."""


ConflictGate = Callable[[int], float]
"""Decides whether a transaction may go on that sees the downstream at a timestamp (TSO).

Returns the seconds after which to begin it again, 0.0 if it may go on. It may raise.
"""


@runtime_checkable
class GuardsConflicts(Protocol):
    """A sink that asks before each transaction about rows that others have changed."""

    def set_gate(self, gate: ConflictGate) -> None:
        """Ask `gate` from now on."""


@runtime_checkable
class DrainerTakeover(Protocol):
    """A sink whose downstream a Drainer may have written before."""

    def set_guard(self, keeper: CheckpointGuard) -> None:
        """Check each checkpoint by `keeper` before any write, and write as its pipeline."""

    def advance_past_ddl(
        self, ddls: Sequence[ScopedDdl], missing: Callable[[Any, int], str]
    ) -> Checkpoint:
        """Move the checkpoint (in safe mode) past DDL that has certainly run, and return it.

        Safe mode ends before DDL that hasn't run. `missing(session, ts)` names a row change through
        `ts` that isn't downstream, "" if all are. Raises DdlError for DDL that may have run, and
        must not run again.
        """


@runtime_checkable
class RemembersBlocked(Protocol):
    """A sink that may have written a part of a batch that fails."""

    def remember_blocked(self, refusal: str, decided: Sequence[int]) -> None:
        """Block the batch for every process that continues from here, until an operator decides.

        `decided`: commit timestamps that have overrides already. Never raises DownstreamError.
        """


@runtime_checkable
class AcceptsChunks(Protocol):
    """A sink that writes aligned chunks (`sluice.relay.aligned_chunks`).

    It does so after `recover`, between two runs; the caller calls `why_not` first. Raises
    CheckpointMovedError and DownstreamError, after which the caller calls `recover`.
    """

    def why_not(self, aligned_chunk: AlignedChunk) -> str:
        """Return why the chunk can't be written at the present checkpoint, "" if it can."""

    def find_result(self, aligned_chunk: AlignedChunk) -> ChunkResult | None:
        """Return the chunk's recorded result, None if there is none."""

    def write_chunk(self, chunk: AlignedChunkRows, confirm: BeforeCommit) -> ChunkResult:
        """Write the chunk and its result in one transaction, unless it is written already.

        A chunk that the downstream can't take is declined.
        """

    def decline(self, aligned_chunk: AlignedChunk, why: str, *, is_passing: bool) -> ChunkResult:
        """Record that the chunk isn't written, and return its result.

        If it was written before, that is the result. `is_passing`: it may be accepted if its rows
        are read again.
        """


class Sink(Protocol):
    """Write one cluster's changes to one downstream. Used by one thread.

    After any error the caller calls `recover`, and continues from the checkpoint that it returns.
    """

    write_plan: str
    """The write planner or encoder whose steps `run` takes (`sluice.etl.changes.planning`)."""

    @property
    def address(self) -> str:
        """Return the downstream's address, for messages; without secrets."""

    def recover(self) -> Checkpoint | None:
        """Connect again, undo or finish what was begun, and return the checkpoint, if any."""

    def run(self, steps: Iterable[Step], confirm: BeforeCommit = always_confirm) -> SinkResult:
        """Execute steps in order; call `confirm` before anything irreversible becomes durable.

        Steps after the last `commit` step are not downstream: `steps` may raise in the middle when
        preparing fails. Raises ApplyError, DdlError, CheckpointMovedError (permanent) and
        DownstreamError.
        """

    def close(self) -> None:
        """Release connections and files. Never raises."""
