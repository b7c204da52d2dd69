"""Model the overview: the way of the data, each part with its state, pace and lag."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.etl.operate.assurance import VerifiedPart

__all__ = [
    "IDLE",
    "LATE_LAG_MS",
    "PAUSED",
    "STATES",
    "STOPPED",
    "UNKNOWN",
    "WAITING",
    "WORKING",
    "ArchivePart",
    "DownstreamPart",
    "LandingPart",
    "Overview",
    "PumpPart",
    "RelayPart",
    "VerifiedPart",
]

WORKING = "works"
IDLE = "idle"
"""State of a part that has nothing to do, or hasn't begun."""
WAITING = "waits"
"""State of a part that has something to do, and makes no progress."""
PAUSED = "paused"
STOPPED = "stopped"
"""An operator has to act."""
UNKNOWN = "unknown"
"""State of a part that doesn't answer."""
LATE_LAG_MS = 30_000.0
"""A part that lags more than this, and more than three empty windows, counts as waiting."""
STATES = (WORKING, IDLE, WAITING, PAUSED, STOPPED, UNKNOWN)


@dataclass(frozen=True, slots=True)
class PumpPart:
    """A pump, as the registry has it.

    `max_commit_ts`: TSO through which it has everything; `lag_ms`: how far that is behind the
    clock. `registry_state`: online, pausing, paused, closing, offline. `is_captured`: it captures
    from TiKV, and is a replica of all others that do, of `share` if that isn't "". `capture`: what
    it does, for people, if it answers.
    """

    node_id: str
    host: str
    state: str
    registry_state: str
    max_commit_ts: int
    lag_ms: float
    is_captured: bool = False
    share: str = ""
    capture: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LandingPart:
    """Landing: pumps to relay log.

    `at_ts`: everything through this TSO is landed, 0: nothing yet; `lag_ms`: how far that is behind
    the clock, None if nothing is. The pace is that of the last minute.
    """

    state: str
    at_ts: int
    lag_ms: float | None
    transactions_per_s: float
    changes_per_s: float
    windows: int
    """Landed since counting began."""


@dataclass(frozen=True, slots=True)
class RelayPart:
    """The relay log.

    `waiting_ms`: how much of it (ms of the upstream's time) isn't applied; `bytes`: what it takes,
    None if not looked up. `keep`: as in the settings, "" for ever.
    """

    state: str
    url: str
    lo: int
    hi: int
    waiting_ms: float | None
    bytes: int | None
    keep: str


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """The archive.

    `promised_ts`: from this TSO on, through `hi`, all tables can be restored as of every moment, 0:
    they can't be now, as `unrestorable` (their names) lack rows, or there is no table.
    `lag_ms`: how much is landed and not archived. `idle`: none is set up.
    """

    state: str
    url: str
    lo: int
    hi: int
    lag_ms: float | None
    bytes: int | None
    snapshots: int
    promised_ts: int
    unrestorable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DownstreamPart:
    """Applying, and what it writes to.

    `at_ts`: the checkpoint, 0: none; while the downstream doesn't answer, the newest that is known.
    `lag_ms`: clock minus checkpoint. The pace is that of the last minute. `refused`: what was
    refused, and waits for an override, "" for nothing; `refusal`: its id. `topics`: the number of
    topics that got messages.
    """

    state: str
    name: str
    at_ts: int
    lag_ms: float | None
    transactions_per_s: float
    changes_per_s: float
    refused: str = ""
    refusal: str = ""
    ddl_under_way: int | None = None
    consistent: bool | None = None
    topics: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of all parts, and what holds data back. Moments are Unix ms, timestamps TSO."""

    at_ms: int
    pipeline: str
    """Id of the pipeline, as in the registry."""
    pumps: tuple[PumpPart, ...]
    landing: LandingPart
    relay: RelayPart
    archive: ArchivePart
    downstream: DownstreamPart
    verified: VerifiedPart
    overrides: tuple[dict[str, Any], ...]
    """Overrides that no checkpoint has passed, in the form of `sluice.etl.operate.list_overrides`.
    """
    jobs: tuple[dict[str, Any], ...]
    """Unfinished jobs, in the form of `sluice.relay.jobs.JobStatus.to_json`."""
    failures: tuple[dict[str, Any], ...]
    """Why tasks have stopped: what, message, hint, made_ms."""
    held_back: tuple[str, ...]
    """The blockers of replication, a sentence each, the gravest first; () if there are none."""
    errors: dict[str, str]
    """The sources that do not respond, with their errors: ``downstream``, ``upstream``, ``relay``,
    ``archive`` …
    """
    silent_ms: dict[str, int] = field(default_factory=dict)
    """Time since which sources don't answer."""
    as_of_ms: dict[str, int] = field(default_factory=dict)
    """Time of each source's shown answer: some time ago if it does not respond now."""

    @property
    def lag_ms(self) -> float | None:
        """Return how far the downstream is behind the clock."""
        return self.downstream.lag_ms

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self) | {"lag_ms": self.lag_ms}
