"""Read changes as a stream: offsets are commit timestamps, and a batch holds whole transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sluice.etl.history.history_log import HistoryLog
from sluice.etl.spark.remote_workers import with_credentials
from sluice.relay.consumers import Consumers, stream_consumer
from sluice.spark.columns import ChangeColumns
from sluice.spark.portions import PortionReader, concerned_windows, partitions
from sluice.spark.query import ChangeQuery, ChangesError, check_range
from sluice.tidb import tso

__all__ = ["ChangeStreamReader", "StreamOptions"]

_MAX_ROWS, _MAX_WINDOWS = 1_000_000, 10_000
"""Some seconds of work for a few cores; a batch that fails is read again from its beginning."""
_IDLE_MS = 60_000
"""Without changes of its table a stream moves on so often, which costs an empty batch: what lies
behind its offset stays in the relay log.
"""
_LOOK_INTERVAL_S = 0.2
"""Spark asks a hundred times a second while there is nothing; each look lists folders."""

Offset = dict[str, int]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream, besides those of its query."""

    consumer: str = ""
    """The name under which the relay log keeps what the stream still needs; empty: it doesn't."""
    max_rows: int = _MAX_ROWS
    """Row changes of a batch, more only in a single window."""
    max_windows: int = _MAX_WINDOWS

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse a data source's options. Raises ChangesError."""
        limits = []
        for name, usual in (
            ("maxRowsPerTrigger", _MAX_ROWS),
            ("maxWindowsPerTrigger", _MAX_WINDOWS),
        ):
            text = options.get(name) or str(usual)
            if not text.isdecimal() or not int(text):
                raise ChangesError(f"the option {name!r} is {text!r}, not a number above 0")
            limits.append(int(text))
        if options.get("until"):
            raise ChangesError(
                "a stream has no until", hint="read a batch, or stop the query when it is there"
            )
        return cls(options.get("consumer") or "", *limits)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Read a table's changes as they land; the offset is ``{"tso": <commit timestamp>}``."""

    def __init__(self, query: ChangeQuery, columns: ChangeColumns, options: StreamOptions) -> None:
        self._query = query
        self._options = options
        self._read = with_credentials(PortionReader(query, columns, is_stream=True))
        self._target: int | None = None
        self._idle: tuple[int, int, float] = -1, 0, 0.0
        """The offset behind which there was nothing, through which TSO, and when (monotonic s)."""

    def initialOffset(self) -> Offset:
        """Return where a new query begins, and mark it in the relay log."""
        past = self._query.past()
        since = past.last if self._query.since is None else self._query.since
        check_range(past, since, past.last)
        self._mark(since)
        return {"tso": since}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch, the end of a window; `start` if there is nothing.

        Raises ChangesError if some of what follows `start` has been removed, relay errors.
        """
        begin = start["tso"]
        idle, looked, when = self._idle
        if idle != begin:
            looked = begin
        elif time.monotonic() - when < _LOOK_INTERVAL_S:
            return start
        past = self._query.past()
        last = past.last if self._target is None else min(self._target, past.last)
        if begin < last:
            check_range(past, begin, last)
            end = self._end_of_batch(past, begin, (looked, last), limit)
            if end > begin:
                return {"tso": end}
        self._idle = begin, max(looked, last), time.monotonic()
        return start

    def _end_of_batch(
        self, past: HistoryLog, begin: int, unread: tuple[int, int], limit: ReadLimit
    ) -> int:
        """Return where a batch from `begin` on ends; `unread`: the range that may hold changes."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        through, changes = begin, 0
        looked, last = unread
        found = concerned_windows(past, self._query.table, looked, last) if looked < last else ()
        for windows, window in enumerate(found):
            is_full = changes + window.changes > self._options.max_rows
            if changes and is_limited and (is_full or windows == self._options.max_windows):
                return through
            through = min(window.hi, last)
            changes += window.changes
        return last if changes or tso.ms_between(begin, last) >= _IDLE_MS else begin

    def reportLatestOffset(self) -> Offset | None:
        return {"tso": self._query.past().last}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query that reads what there is, and ends."""
        self._target = self._query.past().last

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return a partition a portion of a batch. Raises ChangesError, relay errors."""
        if start["tso"] >= end["tso"]:
            return []
        past = self._query.past()
        check_range(past, start["tso"], end["tso"])
        return partitions(past, self._query.table, start["tso"], end["tso"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        yield from self._read(iter([partition.value]))

    def commit(self, end: Offset) -> None:
        """Let the relay log remove what the query has written. Raises OSError."""
        self._mark(end["tso"])

    def _mark(self, ts: int) -> None:
        if self._options.consumer:
            name = stream_consumer(self._options.consumer, str(self._query.table))
            what = f"the Spark stream {self._options.consumer} of {self._query.table}"
            Consumers(self._query.settings.open_relay()).note(name, ts, what)
