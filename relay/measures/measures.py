"""The measures in a relay log, to read and to add to."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from sluice.relay.log import RelayLog
from sluice.relay.measures.counters import CounterDocument, Durations, TableCount, TableCounters
from sluice.relay.measures.points import DAY, HOUR, WEEK, LagPoint, LagSeries, merge_series
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["LAND", "CounterStore", "CounterTotals", "source_of"]

LAND = "land"
_APPLY_PREFIX = "apply-"
_TABLES_SUFFIX = "-tables"
_FOLDER = "measures"
_MAX_VERSIONS = 4
_HINT = "remove the folder `measures` beside the windows: counting starts over"


def source_of(downstream: str) -> str:
    """Return the source for what is applied to a downstream, by the downstream's name."""
    return f"{_APPLY_PREFIX}{zlib.crc32(downstream.encode()):08x}"


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """The counters of landing and applying, by name.

    They are windows, transactions, changes, ddls, bytes, retries; for applying also inserts,
    updates, deletes, rows (net).
    """

    land: CounterDocument = field(default_factory=CounterDocument)
    apply: CounterDocument = field(default_factory=CounterDocument)

    @property
    def durations(self) -> Mapping[str, Durations]:
        """Return the durations of stages, by name; landing's begin with ``land_``."""
        return {
            **{f"land_{name}": one for name, one in self.land.durations.items()},
            **self.apply.durations,
        }


class CounterStore:
    """Every method raises RelayCorruptError, OSError."""

    def __init__(self, relay: RelayLog, downstream: str | None = None) -> None:
        """Open the counters of a relay log.

        `downstream`: only what is applied there (see `source_of`), None: to all downstreams
        together.
        """
        self._storage = relay.storage
        self._downstream = downstream

    # Adding

    def note(self, source: str, measured: CounterDocument, token: str, number: int) -> None:
        """Durably add what the process `token` has counted since its addition before.

        Once, though it be tried several times with this number (from 1 on).
        """
        self._document(source).change(lambda there: there.plus(measured, token, number))

    def add_tables(
        self, source: str, tables: Mapping[str, TableCount], token: str, number: int
    ) -> None:
        """Add to the changes by table, as `add` does."""
        self._tables(source).change(lambda there: there.plus(tables, token, number))

    # Reading

    def totals(self) -> CounterTotals:
        """Return the totals to date."""
        applied = [self._document(source).load() for source in self._applying()]
        return CounterTotals(
            self._document(LAND).load(), reduce(CounterDocument.beside, applied, CounterDocument())
        )

    def tables(self) -> dict[str, TableCount]:
        """Return the applied changes by table, under the upstream's names."""
        found: dict[str, TableCount] = {}
        for source in self._applying():
            for name, count in self._tables(source).load().tables.items():
                found[name] = found.get(name, TableCount()) + count
        return found

    def points(self, series: LagSeries) -> list[LagPoint]:
        """Return lag and pace over the last hour, day or week, ascending.

        `series`: HOUR, DAY or WEEK. Where nothing was recorded there is no point.
        """
        totals = self.totals()
        land, applied = (
            {HOUR: found.hour, DAY: found.day, WEEK: found.week}[series]
            for found in (totals.land, totals.apply)
        )
        return merge_series(land, applied, series)

    def _applying(self) -> list[str]:
        if self._downstream is not None:
            return [source_of(self._downstream)]
        names = (name.removesuffix(_TABLES_SUFFIX) for name in self._storage.names(_FOLDER))
        return sorted({name for name in names if name.startswith(_APPLY_PREFIX)})

    def _document(self, source: str) -> VersionedDocument[CounterDocument]:
        form = DocumentFormat(
            CounterDocument.to_json, CounterDocument.from_json, CounterDocument, _HINT
        )
        return VersionedDocument(self._storage, f"{_FOLDER}/{source}", form, _MAX_VERSIONS)

    def _tables(self, source: str) -> VersionedDocument[TableCounters]:
        form = DocumentFormat(TableCounters.to_json, TableCounters.from_json, TableCounters, _HINT)
        return VersionedDocument(
            self._storage, f"{_FOLDER}/{source}{_TABLES_SUFFIX}", form, _MAX_VERSIONS
        )
