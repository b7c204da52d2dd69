"""Everything that metrics are made of, of one pipeline at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from etl.overview import Overview, Sizes, newest_sizes, overview
from etl.ownership import downstream_name
from etl.settings import Settings
from relay.measures import Measures, TableCount, Totals
from relay.quality import QualityRun, QualityRuns
from relay.verified import TableVerified, Verifications, VerifyingLook

__all__ = ["Sight", "look"]


@dataclass(frozen=True, slots=True)
class Sight:
    """The overview, and what it leaves out."""

    overview: Overview
    totals: Totals
    now_ms: int
    """This machine's clock, Unix ms."""
    tables: Mapping[str, TableCount] = field(default_factory=dict)
    verified: Sequence[TableVerified] = ()
    verifying: VerifyingLook = field(default_factory=VerifyingLook)
    quality: Sequence[QualityRun] = ()
    """The suites of the newest run."""
    sizes: Sizes | None = None


def look(settings: Settings, tables: int, patience_s: float) -> Sight:
    """Look at a pipeline; at so many tables of it, those with the most changes. Raises RelayCorruptError, OSError when
    the relay log can't be read; who else doesn't answer within `patience_s` is in the overview's errors.
    """
    relay = settings.open_relay()
    measures = Measures(relay, downstream_name(settings.target))
    seen = overview(settings, patience_s)
    verifications = Verifications(relay)
    return Sight(
        seen,
        measures.totals(),
        time.time_ns() // 1_000_000,
        _most_changed(measures, tables),
        list(verifications.last().values()),
        verifications.look(),
        QualityRuns(relay.place).last(),
        newest_sizes(settings) if "archive" not in seen.errors else None,
    )


def _most_changed(measures: Measures, most: int) -> dict[str, TableCount]:
    if not most:
        return {}
    found = measures.tables()
    names = sorted(found, key=lambda name: (-sum(_kinds(found[name])), name))[:most]
    return {name: found[name] for name in names}


def _kinds(count: TableCount) -> tuple[int, int, int]:
    return count.inserts, count.updates, count.deletes
