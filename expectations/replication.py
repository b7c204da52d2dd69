"""Collect the state of the replication from the relay log, the archive and the checkpoint."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.settings import Settings
from sluice.expectations.dataset import TableShape
from sluice.expectations.suite import REPLICATION, QualityError
from sluice.relay import RelayError
from sluice.relay.archive import Archive
from sluice.tidb import tso
from sluice.tidb.table_name import full_name

__all__ = ["HOUR_MS", "ReplicationDataset", "changes_per_hour"]

HOUR_MS = 3_600_000


class ReplicationDataset:
    """The facts. There are no rows to ask for."""

    on = REPLICATION
    ts = 0

    def __init__(self, settings: Settings, at_ms: int | None = None) -> None:
        self.settings = settings
        self.at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Raise QualityError: there are no rows."""
        raise QualityError("the replication has no rows to ask for")

    def table(self, name: str) -> str:
        """Raise QualityError: there is no table."""
        raise QualityError(f"{name}: the replication's suite is about no table")

    def shape(self, name: str) -> TableShape:
        """Return a shape without columns."""
        return TableShape(name, ())

    def tables(self) -> Sequence[str]:
        """None."""
        return ()

    def broken(self, hours: float) -> tuple[str, int]:
        """Return where the chain of windows is broken, "" if nowhere, and the windows checked.

        Those are the number of the relay log's windows of the last `hours`. The archive's segments
        are checked from the first to the last, and whether the relay log goes on where they end.
        Raises OSError.
        """
        count, before = 0, None
        relay = self.settings.open_relay()
        try:
            for window in relay.windows(tso.compose(max(0, int(self.at_ms - hours * HOUR_MS)))):
                if before is not None and window.lo != before:
                    return f"after {before} the next window begins at {window.lo}", count
                count, before = count + 1, window.hi
            archive = Archive.open(self.settings.archive_url)
            segments = list(archive.segments())
            for earlier, later in pairwise(segments):
                if earlier.hi != later.lo:
                    return f"the archive has nothing between {earlier.hi} and {later.lo}", count
            first = relay.first()
            if segments and first is not None and first.lo > segments[-1].hi:
                return (
                    f"the archive ends at {segments[-1].hi}, and the relay log begins at"
                    f" {first.lo}",
                    count,
                )
        except RelayError as error:
            return str(error), count
        return "", count

    def lag_s(self) -> float | None:
        """Return how far the checkpoint is behind the clock, None if there is none.

        Raises DownstreamError, relay errors.
        """
        last = self.settings.open_relay().last()
        found = read_checkpoint(self.settings.target, last.cluster_id) if last is not None else None
        return (
            None
            if found is None
            else max(0.0, (self.at_ms - tso.physical_ms(found.commit_ts)) / 1000)
        )

    @cached_property
    def changes(self) -> Mapping[str, Mapping[int, float]]:
        """Return each table's changes in each hour, as the archive counted them.

        The table is ``schema.table`` upstream, the hour Unix ms / HOUR_MS. The counts go back as
        far as the archive does. Raises relay errors.
        """
        return changes_per_hour(self.settings)

    @property
    def last_hour(self) -> int:
        """Return the last hour that is over and archived. Raises relay errors."""
        last = Archive.open(self.settings.archive_url).last()
        through_ms = tso.physical_ms(last.hi) if last is not None else 0
        return int(min(through_ms, self.at_ms)) // HOUR_MS - 1

    def usual(self, table: str, hour: int, days: int) -> float | None:
        """Return the median of a table's changes in the same hour of the days before.

        None if the table existed on none of them.
        """
        found = self.changes.get(table, {})
        before = [found.get(hour - 24 * day, 0.0) for day in range(1, days + 1)]
        known = [
            count
            for day, count in enumerate(before, 1)
            if hour - 24 * day >= min(found, default=hour)
        ]
        return median(known) if known else None


def changes_per_hour(settings: Settings) -> Mapping[str, Mapping[int, float]]:
    """Return the changes that the archive's segments have counted, by table and hour.

    The changes of a segment that is longer than an hour are spread evenly over its time. Raises
    relay errors.
    """
    counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    names: dict[int, str] = {}
    for segment in Archive.open(settings.archive_url).segments():
        names |= {file.table_id: full_name(file.schema, file.table) for file in segment.lake}
        low, high = (
            tso.physical_ms(segment.lo),
            max(tso.physical_ms(segment.hi), tso.physical_ms(segment.lo) + 1),
        )
        shares = [
            (hour, (min(high, (hour + 1) * HOUR_MS) - max(low, hour * HOUR_MS)) / (high - low))
            for hour in range(low // HOUR_MS, (high - 1) // HOUR_MS + 1)
        ]
        for table, changes in segment.tables.items():
            for hour, share in shares:
                counts[table][hour] += changes * share
    named: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for table, hours in counts.items():
        for hour, count in hours.items():
            named[names.get(table, f"table {table}")][hour] += count
    return named
