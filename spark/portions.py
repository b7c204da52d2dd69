"""Read a table's changes in portions: ranges of commit timestamps that Spark's tasks read.

A portion names no file. Its reader looks up what the archive and the relay log have of the range
then, so that a compaction or a purge between planning and reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.history.history_log import HistoryLog, LogRange
from sluice.etl.history.lake import LakeLayout
from sluice.relay import WindowRecord, iter_parts
from sluice.relay.storage import Storage
from sluice.spark.columns import ChangeColumns, ids_named, is_named
from sluice.spark.query import ChangeQuery, check_range
from sluice.tidb.table_name import TableName

__all__ = ["Portion", "PortionReader", "concerned_windows", "partitions"]

PORTION_CHANGES, PORTION_BYTES = 200_000, 64 << 20
"""What a task reads: some seconds of work, so that a lost executor or a straggler costs no more."""
_BATCH_ROWS = 10_000
"""Rows of a batch for the JVM, as Spark's own `maxRecordsPerBatch`."""


class Portion(NamedTuple):
    """The commit timestamps (TSO) after `since` through `until`."""

    since: int
    until: int


class PortionPartition(InputPartition):  # type: ignore[misc] # pyspark has no types here
    """A portion as a partition of Spark's; its value is the range `(since, until]` of TSO."""


def concerned_windows(
    past: HistoryLog, name: TableName, since: int, until: int
) -> Iterator[WindowRecord]:
    """Yield the windows in (since, until] that have, or may have, changes of a table, ascending.

    Of those from the archive `changes` and `parts` are what holds changes of the table.
    """
    for stretch in past.ranges(since, until):
        for window in _of_table(stretch, name).windows():
            if window.parts and ids_named(RecordedSchema.from_window(window), name):
                yield window


def _of_table(stretch: LogRange, name: TableName) -> LogRange:
    return stretch.only(lambda window: ids_named(RecordedSchema.from_window(window), name))


def _portions(past: HistoryLog, name: TableName, since: int, until: int) -> Iterator[Portion]:
    """Yield portions that together hold each change of a table in (since, until] once."""
    begin, changes, size, through = since, 0, 0, since
    for window in concerned_windows(past, name, since, until):
        if changes and (changes >= PORTION_CHANGES or size >= PORTION_BYTES):
            yield Portion(begin, through)
            begin, changes, size = through, 0, 0
        changes += window.changes
        size += sum(part.bytes for part in window.parts)
        through = min(window.hi, until)
    if changes:
        yield Portion(begin, through)


def partitions(past: HistoryLog, name: TableName, since: int, until: int) -> list[PortionPartition]:
    """Return a partition a portion. Raises relay errors."""
    if since >= until:
        return []
    return [PortionPartition(tuple(each)) for each in _portions(past, name, since, until)]


@dataclass(frozen=True, slots=True)
class PortionReader:
    """Read portions in Spark's Python workers."""

    query: ChangeQuery
    columns: ChangeColumns
    is_stream: bool = False
    """Whether DDL behind the query's begin may add columns, which ends it."""

    def __call__(self, portions: Iterable[Portion]) -> Iterator[pa.RecordBatch]:
        """Yield the changes in commit order, as batches that Spark takes.

        Raises ChangesError, RowDecodeError with the object's name, relay errors.
        """
        name = self.query.table
        for since, until in portions:
            past = self.query.past()
            check_range(past, since, until)
            with past.held(f"Spark reads {name}", since):
                for stretch in past.ranges(since, until):
                    own = _of_table(stretch, name)
                    for window in own.windows():
                        yield from self._window(own.log.storage, window, (since, until))

    def _window(
        self, storage: Storage, window: WindowRecord, inside: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        schema = RecordedSchema.from_window(window)
        ids = ids_named(schema, self.query.table) if window.parts else set()
        if not ids:
            return
        timeline = SchemaTimeline(schema)
        wanted = np.array(sorted(ids))
        cuts = [0, *(ddl.commit_ts for ddl in schema.ddls), np.iinfo(np.int64).max]
        for batch in iter_parts(storage, window.parts):
            changes = pa.Table.from_batches([batch])
            commit_ts, table_id = (changes[name].to_numpy() for name in ("commit_ts", "table_id"))
            mask = (commit_ts > inside[0]) & (commit_ts <= inside[1]) & np.isin(table_id, wanted)
            changes = changes.filter(pa.array(mask))
            places = np.searchsorted(changes["commit_ts"].to_numpy(), cuts, side="right")
            for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
                yield from self._between_ddl(changes.slice(begin, end - begin), timeline)

    def _between_ddl(self, changes: pa.Table, timeline: SchemaTimeline) -> Iterator[pa.RecordBatch]:
        ids = changes["table_id"].to_numpy()
        for table_id in np.unique(ids).tolist():
            own = changes.filter(pa.array(ids == table_id))
            commit_ts = int(own["commit_ts"][0].as_py())
            table = timeline.find(table_id, commit_ts)
            # None: the rows of a table that was truncated or dropped before they were committed
            if table is None or not is_named(table.schema_name, table.name, self.query.table):
                continue
            if self.is_stream:
                self.columns.check_newer(table, commit_ts)
            layout = LakeLayout.for_table(table)
            rows = self.columns.fit(layout.rows(table, own), table, layout)
            yield from rows.to_batches(max_chunksize=_BATCH_ROWS)
