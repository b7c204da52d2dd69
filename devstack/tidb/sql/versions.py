"""Keep a recording's and a workload's rows and schemas at every commit timestamp.

They are kept in plain Python. Which rows there are is worked out from the recorded binlogs one
change at a time, without any part of the pipeline: no windows, net effects or groups. Snapshots of
the recordings show whether it is right.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from sluice.devstack.tidb.sql import partitions
from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.versioned_rows import (
    Catalog,
    Key,
    RowVersions,
    Stored,
    VersionedRows,
    stored_by_id,
)
from sluice.etl.changes import server_errors
from sluice.tidb.codec.column_value import from_datum, missing_value
from sluice.tidb.codec.row import encode_delete, read_pairs
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import binary_table
from sluice.tidb.schema import MAX_USER_TABLE_ID, Table
from sluice.tidb.tikv.meta import hash_field_key

_MAX_CACHED_TABLES, _MAX_CACHED_ROWS = 8, 10_000
"""Number of tables whose rows are kept as they were read last, and their size at most.

Chunks are read one after the other.
"""
_ROWS_PER_SLICE = 4096
_MAX_PENDING = 1000
"""Transactions that wait to be taken in; with more, each that comes takes in another one."""


class Versions(VersionedRows):
    """The versions that `recording` holds.

    It is read on first use. `new_collations`: whether its cluster has any.
    """

    def next_id(self, table: Table) -> int:
        """Return SHOW CREATE TABLE's AUTO_INCREMENT or AUTO_RANDOM_BASE.

        It is the first id that no TiDB has taken for itself, 0 for none. Only known as it was at
        the end of the recording.
        """
        self._load()
        kind = "TARID" if table.auto_random_bits else "TID"
        taken = self._meta.get(
            hash_field_key(f"DB:{table.schema_id}", f"{kind}:{table.id}".encode())
        )
        return int(taken) + 1 if taken else 0

    def catalog(self, ts: int) -> Catalog:
        """Return the schema as of `ts`."""
        self._load()
        return self._catalogs[bisect.bisect_right(self._changed_at, ts) - 1]

    def definition(self, table_id: int, schema_version: int) -> Table | None:
        """Return the table as a session with this schema version knows it.

        None for one of TiDB's own.
        """
        self._load()
        known = self._catalogs[
            bisect.bisect_right(self._schema_versions, schema_version) - 1
        ].tables
        table = known.get(table_id) or self._tables.get(table_id)
        if (
            table is None
            or table_id > MAX_USER_TABLE_ID
            or table.schema_name.lower() in SYSTEM_SCHEMAS
        ):
            return None
        return table if self.new_collations() else binary_table(table)

    def follow(self, ts: int, event: bytes | DdlHistoryJob) -> None:
        """Add a transaction committed at `ts`, or a finished DDL job, behind the recording.

        `event`: the Prewrite, or the job. Most are taken in by the next reader: a short workload
        isn't slowed down.
        """
        self._coming.append((ts, event))
        if len(self._coming) > _MAX_PENDING and (self._loaded or self._recording is None):
            if not self._lock.acquire(blocking=False):
                return  # the reader takes in all
            try:
                self._ingest()
                self._ingest()
            finally:
                self._lock.release()

    def end_at(self, ts: int) -> None:
        """Forget what the recording has after `ts`: it was not played.

        Nothing may have been written behind the recording yet.
        """
        with self._lock:
            if self._end is None or ts < self._end:
                self._end = ts
                self._reset()

    def drop(self, safe_point: int) -> None:
        """Collect garbage as TiDB's GC: no reader is below this TSO any longer."""
        with self._lock:
            self._safe_point = max(self._safe_point, safe_point)
            while self._deleted and self._deleted[0][0] <= self._safe_point:
                _, table_id, key = self._deleted.popleft()
                chain = self._rows.get(table_id, {}).get(key)
                if chain is not None and chain.drop(self._safe_point):
                    del self._rows[table_id][key]

    def rows(self, table: Table, ts: int, low: Any = None, high: Any = None) -> Iterator[list[Any]]:
        """Yield the rows of a table as of `ts` in the order of their keys.

        A row is the values of its stored columns, then the row id if it has one. `low`, `high`:
        the first column of the clustered key is not below the one, nor above the other. SQLError
        UNKNOWN_ERROR for what isn't in binlogs.
        """
        self._load()
        if low is not None or high is not None:
            yield from (row for _, row in self._decoded(table, ts, low, high))
            return
        recent = self._recent.get((id(table), ts))
        if recent is None:
            every = (row for _, row in self._decoded(table, ts))
            recent = list(itertools.islice(every, _MAX_CACHED_ROWS + 1))
            if len(recent) > _MAX_CACHED_ROWS:
                yield from (row for _, row in self._decoded(table, ts))
                return
            with self._lock:
                while len(self._recent) >= _MAX_CACHED_TABLES:
                    self._recent.pop(next(iter(self._recent)))
                self._recent[id(table), ts] = recent
        for row in recent:
            yield row.copy()

    def keyed_rows(self, table: Table, ts: int) -> Iterator[tuple[Key, list[Any]]]:
        """Yield the rows as of `ts`, each with its key. SQLError as `rows`."""
        self._load()
        yield from self._decoded(table, ts)

    def row_at(self, table: Table, key: Key, ts: int) -> list[Any] | None:
        """Return the row with this key as of `ts`, None if there is none."""
        self._load()
        chain = self._rows.get(table.id, {}).get(key)
        stored = chain.at(ts) if chain is not None else None
        return None if stored is None else self._values(table, key, stored)

    def key_of(self, table: Table, row: Mapping[str, Any]) -> Key:
        """Return the key of a row, which is given by its columns and the row id."""
        return self._key(table, stored_by_id(read_pairs(encode_delete(table, row), 0)))

    @staticmethod
    def _values(table: Table, key: Key, row: Stored) -> list[Any]:
        found = [
            from_datum(c, row[c.id]) if c.id in row else missing_value(c)
            for c in table.stored_columns
        ]
        return [*found, key[-1]] if table.handle_kind == "heap" else found

    def _decoded(
        self, table: Table, ts: int, low: Any = None, high: Any = None
    ) -> Iterator[tuple[Key, list[Any]]]:
        columns = table.stored_columns
        unknown = {column for since, column in self._rewritten.get(table.id, ()) if since <= ts}
        places = partitions.ids(table) | {0} if table.is_partitioned else {0}
        for key, chain in self._in_order(table.id, low, high):
            row = chain.at(ts)
            if row is None or key[0] not in places:
                continue
            if unknown and any(c.id in unknown and c.id not in row for c in columns):
                raise SQLError(
                    server_errors.UNKNOWN_ERROR,
                    f"{table.full_name}: a column changed its type; the stand-in can't convert"
                    " rows",
                )
            yield key, self._values(table, key, row)

    def _in_order(self, table_id: int, low: Any, high: Any) -> Iterator[tuple[Key, RowVersions]]:
        with self._lock:
            if table_id not in self._ordered:
                self._ordered[table_id] = sorted(self._rows.get(table_id, {}).items(), key=_place)
            if fresh := self._fresh.pop(table_id, None):
                self._ordered[table_id] = sorted([*self._ordered[table_id], *fresh], key=_place)
            found = self._ordered[table_id]
            first = (
                0
                if low is None
                else bisect.bisect_left(found, (low,), key=lambda item: item[0][1:2])
            )
            last = (
                len(found)
                if high is None
                else bisect.bisect_right(found, (high,), key=lambda item: item[0][1:2])
            )
        # a caller that stops early has waited for little more
        for start in range(first, last, _ROWS_PER_SLICE):
            yield from found[start : min(start + _ROWS_PER_SLICE, last)]

    def newest(self) -> int:
        """Return the last commit timestamp in the recording, 0 if there is none."""
        return (
            max((t.commit_ts for t in self._recording.transactions().values()), default=0)
            if self._recording
            else 0
        )

    def _load(self) -> None:
        with self._lock:
            if not self._loaded and self._recording is not None:
                self._replay(self._recording)
            self._loaded = True
            while self._coming:
                self._ingest()

    def _ingest(self) -> None:
        if self._coming:
            ts, event = self._coming.popleft()
            if isinstance(event, DdlHistoryJob):
                self._know(event)
                self._alter(ts, event, self._history)
            else:
                self._change(ts, event)


def _place(item: tuple[Key, RowVersions]) -> Key:
    """Return where a row is in its table: partitions don't count."""
    return item[0][1:]
