"""What every downstream is to the apply loop: a place with a checkpoint that takes prepared steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sluice.errors import SluiceError
from sluice.etl.changes.steps import ScopedDdl, Step
from sluice.etl.downstream import Checkpoint, ChunkResult
from sluice.etl.downstream.sinks.chunk_writer import AlignedChunkRows
from sluice.relay import AlignedChunk

log = logging.getLogger("sluice.apply")


class ApplyError(SluiceError):
    """The downstream isn't what the changes say it is; names table, key, commit_ts and ways out. `found`: what it said,
    alone.
    """

    way_out = "bring the downstream to what the changes expect, then let the task go on"

    def __init__(self, message: str, found: str = "", way_out: str = "") -> None:
        super().__init__(message, way_out=way_out)
        self.found = found


class BeforeCommit(Protocol):
    """Asks what operators want by now."""

    def __call__(self, step: Step, *, begun: bool = False) -> None:
        """Raises if `step`, a commit or DDL or the beginning of a flight, must not come: then the sink is to `recover`.
        `begun`: a part of it is downstream, so it isn't held, but it may have to be written in another way.
        """


def always_confirm(step: Step, *, begun: bool = False) -> None:
    """A Confirm: everything may come."""


@dataclass(slots=True)
class SinkResult:
    """What `Sink.run` did. Times in seconds; `commits` checkpoints made durable, `rows` net rows, `changes` row changes
    upstream. `round_trip_s`: how long the downstream takes for the least of questions; 0: it isn't known.
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

    def warn(self, warnings: Iterable[str]) -> None:
        """Add a commit step's warnings, and log them."""
        for warning in warnings:
            log.warning("%s", warning)
            self.warnings.append(warning)

    def add_stages(self, timings_ms: Mapping[str, float]) -> None:
        """Add a commit step's timings of the preparing job."""
        for stage, milliseconds in timings_ms.items():
            self.stages_ms[stage] = self.stages_ms.get(stage, 0.0) + milliseconds


class CheckpointGuard(Protocol):
    """Knows whose the checkpoint is, see `sluice.etl.downstream.ownership.exclusivity`."""

    pipeline: str
    """What checkpoints are to name as their owner."""

    def admit(self, found: Checkpoint | None) -> None:
        """Raises an error if this isn't a checkpoint to go on from."""


@runtime_checkable
class DrainerTakeover(Protocol):
    """A sink in whose place a Drainer may have written before."""

    def set_guard(self, keeper: CheckpointGuard) -> None:
        """Have every checkpoint that is found admitted before anything is written, and write checkpoints as the
        keeper's pipeline.
        """

    def advance_past_ddl(self, ddls: Sequence[ScopedDdl], missing: Callable[[Any, int], str]) -> Checkpoint:
        """The checkpoint (in safe mode) after looking at the DDL to come: past what has run already for certain, and
        safe mode ends before what hasn't. `missing(session, ts)` names a row change through `ts` that isn't downstream,
        "" if all are. Raises DdlError for one that may have run, and must not run again.
        """


@runtime_checkable
class RemembersBlocked(Protocol):
    """A sink of which a part may be downstream of what it refuses."""

    def remember_blocked(self, refusal: str, decided: Sequence[int]) -> None:
        """Have it refused again by everybody who goes on from here, until operators decide; `decided`: the commit
        timestamps they have decided about. Never raises for the downstream's sake.
        """


@runtime_checkable
class AcceptsChunks(Protocol):
    """A sink into which rows of the upstream can be written at a checkpoint (`sluice.relay.aligned_chunks`), after
    `recover`,
    between two runs; `hindrance` is asked first. Raises CheckpointMovedError and DownstreamError, after which it is to
    `recover`.
    """

    def why_not(self, appointment: AlignedChunk) -> str:
        """Why nothing can be written for an appointment here and now; "" if it can."""

    def find_result(self, appointment: AlignedChunk) -> ChunkResult | None:
        """What was noted of it; None: nothing."""

    def write_chunk(self, chunk: AlignedChunkRows, confirm: BeforeCommit) -> ChunkResult:
        """Do what the chunk's appointment asks for, with a note of it, in one transaction. What the downstream can't
        take is declined. What was done before isn't done again.
        """

    def decline(self, appointment: AlignedChunk, why: str, *, is_passing: bool) -> ChunkResult:
        """Note that nothing was done; what is noted, which is what was done if it was before. `is_passing`: it may be
        if the rows are read again.
        """


class Sink(Protocol):
    """One downstream of one cluster. Used by one thread. After any error: `recover`, then go on from
    what it returns.
    """

    shape: str
    """Which steps `run` takes: the name of a shape of `sluice.etl.changes.planning`."""

    @property
    def address(self) -> str:
        """What it writes to, for messages; without secrets."""

    def recover(self) -> Checkpoint | None:
        """Connect (anew), undo or finish what was begun, and tell through where the downstream is complete; None:
        nothing yet.
        """

    def run(self, steps: Iterable[Step], confirm: BeforeCommit = always_confirm) -> SinkResult:
        """Execute steps in order; `confirm` is asked before anything is made durable that can't be taken back. What
        comes after the last `commit` step is not downstream: the steps may end in the middle with an exception when
        preparing fails. Raises ApplyError, DdlError, CheckpointMovedError (terminal) and DownstreamError.
        """

    def close(self) -> None:
        """Let go of connections and files. Never raises."""
