"""Count what is applied, for the relay log's measures.

A step is counted when the sink asks for the next one: then it is done. So a step that an error
undoes isn't counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from sluice.etl.apply._conflicts import Conflict
from sluice.etl.apply._metrics import BatchReport
from sluice.etl.changes.steps import CommitDetail, ScopedDdl, Step
from sluice.relay import RelayError, RelayLog
from sluice.relay.measures import (
    ConflictHistory,
    CounterRecorder,
    CounterStore,
    RefusalHistory,
    source_of,
)

__all__ = ["ApplyCounters"]

_KINDS = ("inserts", "updates", "deletes")


class ApplyCounters:
    """Count for one process that applies to one downstream; see `sluice.relay.measures`."""

    def __init__(
        self,
        relay: RelayLog,
        downstream: str,
        upstream_skew_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begin to count; `upstream_skew_ms` as for `CounterRecorder`."""
        self._refusals = RefusalHistory(relay)
        self._lost = ConflictHistory(relay)
        self._recorder = CounterRecorder(
            CounterStore(relay, downstream),
            source_of(downstream),
            upstream_skew_ms=upstream_skew_ms,
        )

    @property
    def upstream_skew_ms(self) -> float:
        """Return TiDB's clock minus this machine's, as of some seconds ago. Never waits."""
        return self._recorder.skew_ms

    def set_position(self, checkpoint_ts: int) -> None:
        """Note that the downstream is complete through `checkpoint_ts`."""
        self._recorder.at(checkpoint_ts)

    def count_steps(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps, and count each when it is done."""
        for step in steps:
            yield step
            self._count_step(step)

    def _count_step(self, step: Step) -> None:
        match step.detail:
            case CommitDetail(counts=counts, returned=returned):
                self._recorder.count(_sum_counts(step, counts.values()))
                if returned:
                    self._recorder.count({"returned": returned})
                self._recorder.changed(counts, step.commit_ts)
                self._recorder.at(step.commit_ts)
            case ScopedDdl():
                self._recorder.count({"ddls": 1})

    def record_batch(self, report: BatchReport, upstream_skew_ms: float) -> None:
        """Count a batch that was written; its lag was reported with that skew."""
        stages = report.stages_ms
        parts = {stage: stages[stage] / 1000 for stage in ("send", "commit", "prepare")}
        whole = {"execute": (stages["send"] + stages["commit"] + stages["ddl"]) / 1000}
        ddl = {"ddl": stages["ddl"] / 1000} if report.ddls else {}
        counts = {"batches": 1, "windows": report.windows, "transactions": report.transactions}
        for topic, sent in report.topics.items():
            counts |= {f"topic.messages.{topic}": sent.messages, f"topic.bytes.{topic}": sent.bytes}
        self._recorder.count(
            counts, {**parts, **whole, **ddl, "delay": max(0.0, report.lag_ms) / 1000}
        )
        self._recorder.observe_age(report.lag_ms - upstream_skew_ms)

    def record_conflicts(self, conflicts: Sequence[Conflict]) -> None:
        """Count changes that lost conflicts, and keep them for people. Never raises."""
        if not conflicts:
            return
        self._recorder.count({"conflicts": len(conflicts)})
        with contextlib.suppress(RelayError, OSError):
            self._lost.note([(one.lost.commit_ts, one.local_ts, one.text()) for one in conflicts])

    def record_failure(self, error: Exception) -> None:
        """Count an error, whether it is retried or not."""
        topic = getattr(error, "topic", "")
        about = {f"topic.errors.{topic}": 1} if topic else {}
        self._recorder.count({"retries": 1, f"error.{type(error).__name__}": 1, **about})

    def record_refusal(self, error: Exception) -> None:
        """Keep what the downstream refused, for the digest of the day. Never raises."""
        with contextlib.suppress(RelayError, OSError):  # as with counters: only people read it
            self._refusals.note(str(error), getattr(error, "commit_ts", 0))

    def record_other_session(self) -> None:
        """Count another session that writes to replicated databases."""
        self._recorder.count({"other_writers": 1})

    def close(self) -> None:
        """Write the remaining counts. Never raises."""
        self._recorder.close()


def _sum_counts(step: Step, counts: Iterable[tuple[int, int, int]]) -> dict[str, int]:
    found = {"commits": 1, "changes": step.changes, "rows": step.rows}
    for one in counts:
        for kind, number in zip(_KINDS, one, strict=True):
            found[kind] = found.get(kind, 0) + number
    return found
