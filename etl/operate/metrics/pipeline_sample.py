"""Everything that metrics are made of, of one pipeline at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.overview import Overview, StorageSizes, latest_sizes, overview
from sluice.etl.settings import Settings
from sluice.relay.measures import CounterStore, CounterTotals, TableCount
from sluice.relay.quality import QualityRun, QualityRuns
from sluice.relay.verification_log import TableVerified, Verifications, VerifierStatus

__all__ = ["PipelineSample", "sample"]


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """One sample of a pipeline: its overview, and values that the overview lacks."""

    overview: Overview
    totals: CounterTotals
    now_ms: int
    """Time of this machine's clock, Unix ms."""
    tables: Mapping[str, TableCount] = field(default_factory=dict)
    verified: Sequence[TableVerified] = ()
    verifying: VerifierStatus = field(default_factory=VerifierStatus)
    quality: Sequence[QualityRun] = ()
    """The suites of the newest run."""
    sizes: StorageSizes | None = None


def sample(settings: Settings, tables: int, patience_s: float) -> PipelineSample:
    """Sample a pipeline, and the `tables` of it with the most changes.

    Raises RelayCorruptError, OSError when the relay log can't be read. Another source that does not
    respond within `patience_s` is in the overview's errors.
    """
    relay = settings.open_relay()
    measures = CounterStore(relay, downstream_name(settings.target))
    seen = overview(settings, patience_s)
    verifications = Verifications(relay)
    return PipelineSample(
        seen,
        measures.totals(),
        time.time_ns() // 1_000_000,
        _most_changed(measures, tables),
        list(verifications.last().values()),
        verifications.look(),
        QualityRuns(relay.place).last(),
        latest_sizes(settings) if "archive" not in seen.errors else None,
    )


def _most_changed(measures: CounterStore, most: int) -> dict[str, TableCount]:
    if not most:
        return {}
    found = measures.tables()
    names = sorted(found, key=lambda name: (-sum(_changes_by_kind(found[name])), name))[:most]
    return {name: found[name] for name in names}


def _changes_by_kind(count: TableCount) -> tuple[int, int, int]:
    return count.inserts, count.updates, count.deletes
