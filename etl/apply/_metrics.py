"""Report what is applied: per batch, per run, and in log lines every few seconds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from sluice.etl.apply._batch import WindowBatch
from sluice.etl.downstream.sinks import SinkResult, TopicCounts
from sluice.tidb import tso

log = logging.getLogger("sluice.apply")

_MAX_WARNINGS = 100
_LOG_INTERVAL_S, _LOG_EVERY_CHANGES = 5.0, 10_000


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch of windows that was written.

    `stages_ms` has read, decode, reduce and format inside the preparing job; prepare, the whole
    job; wait, how long the writer was idle for it; send, ddl and commit downstream.
    """

    lo: int
    hi: int
    windows: int
    transactions: int
    changes: int
    rows: int
    ddls: int
    stages_ms: dict[str, float]
    lag_ms: float
    """The upstream's clock after the batch minus the physical part of `hi`."""
    topics: Mapping[str, TopicCounts] = field(default_factory=dict)
    """What each topic got, of a sink that has topics."""


@dataclass(slots=True)
class ApplySummary:
    """Totals of a run. `checkpoint` is its last one, `rows` are net rows, `changes` upstream's."""

    checkpoint: int = 0
    batches: int = 0
    windows: int = 0
    transactions: int = 0
    changes: int = 0
    rows: int = 0
    ddls: int = 0
    retries: int = 0
    warnings: list[str] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)

    def taken(self) -> Self:
        """Return the totals so far, and reset all but the checkpoint."""
        taken = type(self)(*(getattr(self, each.name) for each in fields(self)))
        for name, value in asdict(type(self)(checkpoint=self.checkpoint)).items():
            setattr(self, name, value)
        return taken

    def add(self, report: BatchReport, warnings: list[str]) -> None:
        self.checkpoint = report.hi
        self.batches += 1
        for name in ("windows", "transactions", "changes", "rows", "ddls"):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        for stage, milliseconds in report.stages_ms.items():
            self.stages_ms[stage] = round(self.stages_ms.get(stage, 0.0) + milliseconds, 3)
        self.warn(warnings)

    def warn(self, warnings: list[str]) -> None:
        """Add warnings; keep the last `_MAX_WARNINGS`."""
        self.warnings = (self.warnings + warnings)[-_MAX_WARNINGS:]


def report_of(
    batch: WindowBatch, written: SinkResult, upstream_skew_ms: float = 0.0
) -> BatchReport:
    """Return the report of a batch that was written.

    `upstream_skew_ms`: TiDB's clock minus this machine's.
    """
    stages = dict(written.stages_ms) | {
        "prepare": batch.prepare_s * 1000,
        "wait": batch.idle_s * 1000,
        "send": written.send_s * 1000,
        "ddl": written.ddl_s * 1000,
        "commit": written.commit_s * 1000,
    }
    # A window that batches cut counts once, in the batch that ends it.
    ended = [window for window in batch.windows if window.hi <= batch.hi]
    return BatchReport(
        batch.after_ts,
        batch.hi,
        len(ended),
        sum(w.transactions for w in ended),
        written.changes,
        written.rows,
        written.ddls,
        {name: round(value, 3) for name, value in stages.items()},
        round(time.time() * 1000 + upstream_skew_ms - tso.physical_ms(batch.hi), 1),
        written.topics,
    )


class ApplyProgressLog:
    """Log one line for the batches since the last one: every few seconds, or for many changes."""

    def __init__(self) -> None:
        self._since = 0.0
        self._reports: list[BatchReport] = []
        self._changes = 0

    def add(self, report: BatchReport) -> None:
        """Add a batch that was written, and log if it is time."""
        if report.changes or report.ddls:
            self._reports.append(report)
            self._changes += report.changes
        self.maybe_log()

    def maybe_log(self, *, last: bool = False) -> None:
        """Log if it is time, or for the `last` time.

        `lag_ms` is the largest, all else is summed.
        """
        now, reports = time.monotonic(), self._reports
        if not reports or not (
            last or self._changes >= _LOG_EVERY_CHANGES or now >= self._since + _LOG_INTERVAL_S
        ):
            return
        stages: dict[str, float] = {}
        for report in reports:
            for stage, milliseconds in report.stages_ms.items():
                stages[stage] = stages.get(stage, 0.0) + milliseconds
        totals = {"lo": reports[0].lo, "hi": reports[-1].hi, "batches": len(reports)}
        for name in ("windows", "transactions", "changes", "rows", "ddls"):
            totals[name] = sum(getattr(report, name) for report in reports)
        stages = {stage: round(milliseconds, 3) for stage, milliseconds in stages.items()}
        lag_ms = max(report.lag_ms for report in reports)
        log.info("applied %s", json.dumps(totals | {"stages_ms": stages, "lag_ms": lag_ms}))
        self._since, self._reports, self._changes = now, [], 0
