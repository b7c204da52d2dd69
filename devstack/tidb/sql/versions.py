"""Keep a recording's and a workload's rows and schemas at every commit timestamp.

They are kept in plain Python. Which rows there are is worked out from the recorded binlogs one
change at a time, without any part of the pipeline: no windows, net effects or groups. Snapshots of
the recordings show whether it is right.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sluice.devstack.recording import Recording
from sluice.devstack.tidb.ddl_history import HISTORY_PREFIX
from sluice.devstack.tidb.sql import partitions, values
from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.rewritten import converted, rewritten_columns
from sluice.etl.changes import server_errors
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.codec.column_value import from_datum, missing_value, to_datum
from sluice.tidb.codec.datum import VARINT, Datum, decode_datum
from sluice.tidb.codec.row import HANDLE_ID, handle_columns, read_pairs
from sluice.tidb.ddl_actions import Action
from sluice.tidb.history import SYSTEM_SCHEMAS, SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import binary_table
from sluice.tidb.schema import MAX_USER_TABLE_ID, WHOLE_COLUMN, Schema, Table
from sluice.tidb.tikv.meta import hash_field_key

_MAX_CACHED_TABLES, _MAX_CACHED_ROWS = 8, 10_000
"""Number of tables whose rows are kept as they were read last, and their size at most.

Chunks are read one after the other.
"""
_ROWS_PER_SLICE = 4096
_MAX_PENDING = 1000
"""Transactions that wait to be taken in; with more, each that comes takes in another one."""
_INSERT, _UPDATE, _DELETE = 0, 1, 4

Stored = Mapping[int, Datum]
"""A row: datums by column id."""
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The schema at one moment: schemas by id, tables by id, and TiDB's TableInfo of each."""

    schemas: Mapping[int, Schema]
    tables: Mapping[int, Table]
    infos: Mapping[int, Mapping[str, Any]]

    def find(self, schema: str, name: str) -> Table | None:
        """Return the table of this name, in any case."""
        wanted = schema.lower(), name.lower()
        return next(
            (t for t in self.tables.values() if (t.schema_name.lower(), t.name.lower()) == wanted),
            None,
        )


@dataclass(slots=True)
class _Chain:
    """The versions of one row, ascending; None is a deletion. Others read it meanwhile."""

    versions: list[tuple[int, Stored | None]] = field(default_factory=list)

    def put(self, ts: int, row: Stored | None) -> None:
        self.versions.append((ts, row))

    def at(self, ts: int) -> Stored | None:
        versions = self.versions
        if len(versions) == 1:
            return versions[0][1] if versions[0][0] <= ts else None
        found = bisect.bisect_right(versions, ts, key=_time)
        return versions[found - 1][1] if found else None

    def drop(self, ts: int) -> bool:
        """Drop the versions that can't be seen from `ts` on.

        Returns whether nothing is left but a deletion.
        """
        found = bisect.bisect_right(self.versions, ts, key=_time)
        if found > 1:
            self.versions = self.versions[found - 1 :]
        return len(self.versions) == 1 and self.versions[0][1] is None


class Versions:
    """The versions that `recording` holds.

    It is read on first use. `new_collations`: whether its cluster has any.
    """

    def __init__(
        self, recording: Recording | None, new_collations: Callable[[], bool] = lambda: True
    ) -> None:
        self._recording = recording
        self.new_collations = cache(new_collations)
        self._lock = threading.Lock()
        self._loaded = False
        self._catalogs: list[Catalog] = [Catalog({}, {}, {})]
        self._changed_at: list[int] = [0]
        self._schema_versions: list[int] = [0]
        self._rows: dict[int, dict[Key, _Chain]] = {}
        self._rewritten: dict[int, list[tuple[int, int]]] = {}
        self._tables: dict[int, Table] = {}
        self._meta: dict[bytes, bytes] = {}
        self._dropped: dict[int, set[int]] = {}
        self._recent: dict[tuple[int, int], list[list[Any]]] = {}
        self._ordered: dict[int, list[tuple[Key, _Chain]]] = {}
        self._coming: deque[tuple[int, bytes | DdlHistoryJob]] = deque()
        self._safe_point = 0
        self._deleted: deque[tuple[int, int, Key]] = deque()
        """Deletions: when, of which table, the row."""
        self._fresh: dict[int, list[tuple[Key, _Chain]]] = {}
        self._history = SchemaHistory()

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
                return  # who reads takes in all
            try:
                self._ingest()
                self._ingest()
            finally:
                self._lock.release()

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
            yield from self._decoded(table, ts, low, high)
            return
        recent = self._recent.get((id(table), ts))
        if recent is None:
            recent = list(itertools.islice(self._decoded(table, ts), _MAX_CACHED_ROWS + 1))
            if len(recent) > _MAX_CACHED_ROWS:
                yield from self._decoded(table, ts)
                return
            with self._lock:
                while len(self._recent) >= _MAX_CACHED_TABLES:
                    self._recent.pop(next(iter(self._recent)))
                self._recent[id(table), ts] = recent
        for row in recent:
            yield row.copy()

    def _decoded(
        self, table: Table, ts: int, low: Any = None, high: Any = None
    ) -> Iterator[list[Any]]:
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
            found = [from_datum(c, row[c.id]) if c.id in row else missing_value(c) for c in columns]
            yield [*found, key[-1]] if table.handle_kind == "heap" else found

    def _in_order(self, table_id: int, low: Any, high: Any) -> Iterator[tuple[Key, _Chain]]:
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

    def _chain(self, table_id: int, key: Key) -> _Chain:
        """Return the versions of a row; new if there were none."""
        chains = self._rows.setdefault(table_id, {})
        if key not in chains:
            chains[key] = _Chain()
            if table_id in self._ordered:
                self._fresh.setdefault(table_id, []).append((key, chains[key]))
        return chains[key]

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

    def _replay(self, recording: Recording) -> None:
        transactions = recording.transactions()
        finished: dict[int, int] = {}
        for txn in transactions.values():
            if txn.ddl_job_id and txn.commit_ts:
                finished[txn.ddl_job_id] = max(finished.get(txn.ddl_job_id, 0), txn.commit_ts)
        self._meta = {
            key: value for key, value in recording.meta_keys() if b"TID:" in key or b"TARID:" in key
        }
        jobs = [
            DdlHistoryJob.from_json(json.loads(value))
            for key, value in recording.meta_keys()
            if key.startswith(HISTORY_PREFIX)
        ]
        jobs = sorted((job for job in jobs if job.finished), key=lambda job: job.schema_version)
        for job in jobs:
            self._know(job)
        events: list[tuple[int, int, Any]] = [
            (finished.get(job.id, job.finished_ts), 0, job) for job in jobs
        ]
        for record in recording.records():
            txn_ = transactions.get(record.start_ts)
            if (
                record.tp == PREWRITE
                and not record.fake
                and txn_
                and txn_.commit_ts
                and not txn_.ddl_job_id
            ):
                events.append((txn_.commit_ts, 1, record.payload))
        for ts, is_rows, event in sorted(events, key=lambda entry: entry[:2]):
            if is_rows:
                self._change(ts, event)
            else:
                self._alter(ts, event, self._history)

    def _know(self, job: DdlHistoryJob) -> None:
        for info in (job.table_info, *job.table_infos):
            if info:
                self._tables.setdefault(
                    int(info["id"]), Table.from_tidb(info, job.schema_id, job.schema_name)
                )

    # ---- rows ----------------------------------------------------------------------------------

    def _change(self, ts: int, payload: bytes) -> None:
        binlog = pb.binlog.Binlog.FromString(payload)
        value = pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)
        # The session that wrote it may not know the newest schema: it put rows into partitions that
        # are gone.
        known = self._catalogs[
            bisect.bisect_right(self._schema_versions, value.schema_version) - 1
        ].tables
        for mutation in value.mutations:
            table = self._tables.get(mutation.table_id)
            if (
                table is None
                or mutation.table_id > MAX_USER_TABLE_ID
                or table.schema_name.lower() in SYSTEM_SCHEMAS
            ):
                continue
            table = known.get(mutation.table_id, table)
            inserted, updated, deleted = (
                iter(mutation.inserted_rows),
                iter(mutation.updated_rows),
                iter(mutation.deleted_rows),
            )
            for kind in mutation.sequence:
                if kind == _INSERT:
                    self._put(table, ts, *_inserted(table, next(inserted)))
                elif kind == _UPDATE:
                    pairs = read_pairs(next(updated), 0)
                    half = len(pairs) // 2
                    old, new = _by_id(pairs[:half]), _by_id(pairs[half:])
                    left = self._remove(table, ts, old)
                    self._put(table, ts, new, left)
                elif kind == _DELETE:
                    self._remove(table, ts, _by_id(read_pairs(next(deleted), 0)))

    def _put(self, table: Table, ts: int, row: Stored, left: int | None = None) -> None:
        """`left`: the partition in which the row was, if that is gone."""
        place, *handle = self._key(table, row)
        key = (place if left is None else left, *handle)
        chain = self._chain(table.id, key)
        chain.put(ts, row)
        chain.drop(self._safe_point)

    def _remove(self, table: Table, ts: int, row: Stored) -> int | None:
        """Remove a row; return its partition if that is gone.

        A late transaction may still change rows there.
        """
        chains = self._rows.setdefault(table.id, {})
        place, *handle = self._key(table, row)
        chain = chains.get((place, *handle))
        if chain is None or chain.at(ts) is None:
            for gone in self._dropped.get(table.id, ()):
                if (gone, *handle) in chains:
                    chains[(gone, *handle)].put(ts, None)
                    return gone
        key = (place, *handle)
        self._chain(table.id, key).put(ts, None)
        self._deleted.append((ts, table.id, key))
        return None

    def _key(self, table: Table, row: Stored) -> Key:
        return _key(table if self.new_collations() else binary_table(table), row)

    # ---- schema --------------------------------------------------------------------------------

    def _alter(self, ts: int, job: DdlHistoryJob, history: SchemaHistory) -> None:
        before = dict(history.tables)
        effect = history.apply(job)
        if not effect.schemas and not effect.tables:
            return
        infos = dict(self._catalogs[-1].infos)
        for info in (job.table_info, *job.table_infos):
            if info:
                infos[int(info["id"])] = info
        for table_id, table in effect.tables.items():
            # exchanged: the table took the id of a partition
            if table is not None and table_id not in infos:
                namesake = next(
                    (t for t in before.values() if t.full_name == table.full_name), None
                )
                infos[table_id] = infos[namesake.id] if namesake is not None else {}
            old = before.get(table_id)
            if table is not None and old is not None:
                self._rewrite(ts, job, old, table)
                if (
                    old.is_partitioned
                    and table.is_partitioned
                    and job.type != Action.REORGANIZE_PARTITION
                ):
                    self._move(ts, old, table, before)
        self._catalogs.append(Catalog(dict(history.schemas), dict(history.tables), infos))
        self._changed_at.append(ts)
        self._schema_versions.append(max(self._schema_versions[-1], job.schema_version))

    def _rewrite(self, ts: int, job: DdlHistoryJob, old: Table, new: Table) -> None:
        """Rows get their values in columns that changed their type."""
        for source, target in rewritten_columns(job, old, new):
            self._rewritten.setdefault(new.id, []).append((ts, target.id))
            for key, row in self._live(new.id, ts):
                if target.id in row:
                    continue
                had = row.get(source.id) or decode_datum(to_datum(source, missing_value(source)))[0]
                with contextlib.suppress(ValueError):
                    self._rows[new.id][key].put(
                        ts, {**row, target.id: converted(had, source, target, job)}
                    )

    def _move(self, ts: int, old: Table, new: Table, before: Mapping[int, Table]) -> None:
        """Move rows of partitions that the table has no longer.

        They go to the table that took their place if one did; the rows of a table that became a
        partition come in.
        """
        had, has = partitions.ids(old), partitions.ids(new)
        self._dropped.setdefault(old.id, set()).update(had - has)
        for gone in had - has:
            taken = {key: row for key, row in self._live(old.id, ts) if key[0] == gone}
            exchanged = next((i for i in has - had if i in before), None)
            for key, row in taken.items():
                self._rows[old.id][key].put(ts, None)
                if exchanged is not None:
                    self._rows.setdefault(gone, {}).setdefault((0, *key[1:]), _Chain()).put(ts, row)
            if exchanged is not None:
                for key, row in self._live(exchanged, ts):
                    self._rows[exchanged][key].put(ts, None)
                    chain = self._rows.setdefault(new.id, {}).setdefault(
                        (exchanged, *key[1:]), _Chain()
                    )
                    chain.put(ts, row)

    def _live(self, table_id: int, ts: int) -> list[tuple[Key, Stored]]:
        chains = self._rows.get(table_id, {})
        return [(key, row) for key, chain in chains.items() if (row := chain.at(ts)) is not None]


def _time(version: tuple[int, Stored | None]) -> int:
    return version[0]


def _place(item: tuple[Key, _Chain]) -> Key:
    """Return where a row is in its table: partitions don't count."""
    return item[0][1:]


def _by_id(pairs: list[tuple[int, Datum, int]]) -> Stored:
    return {column_id: datum for column_id, datum, _ in pairs}


def _inserted(table: Table, data: bytes) -> tuple[Stored]:
    row: dict[int, Datum] = {}
    pos = 0
    if table.handle_kind == "common":
        for column, whole in handle_columns(table):
            datum, pos = decode_datum(data, pos)
            if whole:
                row[column.id] = datum
    else:
        datum, pos = decode_datum(data, pos)
        column_ = table.handle_column
        row[HANDLE_ID if column_ is None else column_.id] = datum
    row.update(_by_id(read_pairs(data, pos)))
    return (row,)


def _key(table: Table, row: Stored) -> Key:
    """Return the partition (0 without), then the handle."""
    place = partitions.place(table, row) if table.is_partitioned else 0
    if table.handle_kind == "heap":
        rowid = row[HANDLE_ID]
        if rowid.flag != VARINT:
            raise SQLError(
                server_errors.UNKNOWN_ERROR, f"{table.full_name}: a row id with flag {rowid.flag}"
            )
        return (place, rowid.value)
    if table.handle_column is not None:
        return (place, from_datum(table.handle_column, row[table.handle_column.id]))
    index = table.primary_index
    assert index is not None
    found = []
    for _, offset, length in index.columns:
        column = table.columns[offset]
        value = from_datum(column, row[column.id])
        if length != WHOLE_COLUMN:
            text = (
                value.decode("utf-8", "replace")
                if column.kind == "text" and isinstance(value, bytes)
                else value
            )
            value = text[:length]
        found.append(values.sorter(column)(value))
    return (place, *found)
