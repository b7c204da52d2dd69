"""Report an archiving pass: per segment, as a whole, and in a log line every few seconds.

A caller follows a pass by `OnSegment`, and ends it by `Stop`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

log = logging.getLogger("sluice.archive")

_PROGRESS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A segment that the archive has now.

    `read_bytes` of the relay log's parts; `log_bytes` and `lake_bytes` of the files that they
    became, the windows' records among the former. `stages_ms`: job (the Spark job until its result
    was taken up) and append; within the job the worker's own stages, and spark, the remainder.
    """

    lo: int
    hi: int
    windows: int
    transactions: int
    changes: int
    read_bytes: int
    log_bytes: int
    lake_bytes: int
    stages_ms: dict[str, float]


@dataclass(slots=True)
class ArchiveSummary:
    """Counts of one pass, or of several.

    `hi`: everything through this TSO is archived; `stages_ms` summed up.
    """

    hi: int = 0
    segments: int = 0
    windows: int = 0
    transactions: int = 0
    changes: int = 0
    read_bytes: int = 0
    log_bytes: int = 0
    lake_bytes: int = 0
    retries: int = 0
    stages_ms: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def add(self, segment: ArchivedSegment) -> None:
        self.hi = segment.hi
        self.segments += 1
        for name in ("windows", "transactions", "changes", "read_bytes", "log_bytes", "lake_bytes"):
            setattr(self, name, getattr(self, name) + getattr(segment, name))
        for stage, ms in segment.stages_ms.items():
            self.stages_ms[stage] = round(self.stages_ms.get(stage, 0.0) + ms, 3)


class ArchiveProgressLog:
    """Log every few seconds what was archived since the last line."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._part = ArchiveSummary()

    def add(self, segment: ArchivedSegment) -> None:
        self._part.add(segment)

    def say(self, *, last: bool = False) -> None:
        seconds = time.monotonic() - self._since
        part = self._part
        if seconds < _PROGRESS_INTERVAL_S and not (last and part.segments):
            return
        if part.segments:
            log.info(
                "archived segments=%d windows=%d transactions=%d changes=%d changes_per_s=%.0f"
                " read_bytes=%d log_bytes=%d lake_bytes=%d hi=%d",
                part.segments,
                part.windows,
                part.transactions,
                part.changes,
                part.changes / max(seconds, 1e-3),
                part.read_bytes,
                part.log_bytes,
                part.lake_bytes,
                part.hi,
            )
        self._begin()


def ms_since(began: float) -> float:
    """Return the milliseconds since a reading of time.perf_counter."""
    return (time.perf_counter() - began) * 1000


OnSegment = Callable[[ArchivedSegment], None]
"""Called with each segment that the catalogue names."""
Stop = Callable[[], bool]


def never_stop() -> bool:
    """Return False."""
    return False


def wait(seconds: float, stop: Stop) -> None:
    """Sleep, but no longer than until `stop`."""
    until = time.monotonic() + seconds
    while not stop() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
