"""Work out the versions of rows and schemas from binlogs and DDL jobs, one change at a time."""

from __future__ import annotations

import bisect
import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
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
class RowVersions:
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


class VersionedRows:
    """The half of Versions that takes changes in; its lock is held while they are."""

    def __init__(
        self, recording: Recording | None, new_collations: Callable[[], bool] = lambda: True
    ) -> None:
        self._recording = recording
        self.new_collations = cache(new_collations)
        self._lock = threading.Lock()
        self._coming: deque[tuple[int, bytes | DdlHistoryJob]] = deque()
        self._end: int | None = None
        """TSO up to which the recording was played; None: all of it."""
        self._safe_point = 0
        self._reset()

    def _reset(self) -> None:
        self._loaded = False
        self._catalogs: list[Catalog] = [Catalog({}, {}, {})]
        self._changed_at: list[int] = [0]
        self._schema_versions: list[int] = [0]
        self._rows: dict[int, dict[Key, RowVersions]] = {}
        self._rewritten: dict[int, list[tuple[int, int]]] = {}
        self._tables: dict[int, Table] = {}
        self._meta: dict[bytes, bytes] = {}
        self._dropped: dict[int, set[int]] = {}
        self._recent: dict[tuple[int, int], list[list[Any]]] = {}
        self._ordered: dict[int, list[tuple[Key, RowVersions]]] = {}
        self._deleted: deque[tuple[int, int, Key]] = deque()
        """Deletions: when, of which table, the row."""
        self._fresh: dict[int, list[tuple[Key, RowVersions]]] = {}
        self._history = SchemaHistory()

    def _chain(self, table_id: int, key: Key) -> RowVersions:
        """Return the versions of a row; new if there were none."""
        chains = self._rows.setdefault(table_id, {})
        if key not in chains:
            chains[key] = RowVersions()
            if table_id in self._ordered:
                self._fresh.setdefault(table_id, []).append((key, chains[key]))
        return chains[key]

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
            if self._end is not None and ts > self._end:
                break
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
            table = known.get(mutation.table_id) or self._tables.get(mutation.table_id)
            if (
                table is None
                or mutation.table_id > MAX_USER_TABLE_ID
                or table.schema_name.lower() in SYSTEM_SCHEMAS
            ):
                continue
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
                    old, new = stored_by_id(pairs[:half]), stored_by_id(pairs[half:])
                    left = self._remove(table, ts, old)
                    self._put(table, ts, new, left)
                elif kind == _DELETE:
                    self._remove(table, ts, stored_by_id(read_pairs(next(deleted), 0)))

    def _put(self, table: Table, ts: int, row: Stored, left: int | None = None) -> None:
        """Put a row; `left` is the partition in which it was, if that is gone."""
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
        given = {int(info["id"]): info for info in (job.table_info, *job.table_infos) if info}
        infos |= given
        for table_id, table in effect.tables.items():
            old = before.get(table_id)
            # exchanged: the table took the id of a partition, which may once have been a table
            if table is not None and old is None and table_id not in given:
                namesake = next(
                    (t for t in before.values() if t.full_name == table.full_name), None
                )
                infos[table_id] = infos[namesake.id] if namesake else infos.get(table_id, {})
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
        """Convert rows' values in columns that changed their type."""
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
                    self._rows.setdefault(gone, {}).setdefault((0, *key[1:]), RowVersions()).put(
                        ts, row
                    )
            if exchanged is not None:
                for key, row in self._live(exchanged, ts):
                    self._rows[exchanged][key].put(ts, None)
                    chain = self._rows.setdefault(new.id, {}).setdefault(
                        (exchanged, *key[1:]), RowVersions()
                    )
                    chain.put(ts, row)

    def _live(self, table_id: int, ts: int) -> list[tuple[Key, Stored]]:
        chains = self._rows.get(table_id, {})
        return [(key, row) for key, chain in chains.items() if (row := chain.at(ts)) is not None]


def _time(version: tuple[int, Stored | None]) -> int:
    return version[0]


def stored_by_id(pairs: list[tuple[int, Datum, int]]) -> Stored:
    """Return a row's datums by column id."""
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
    row.update(stored_by_id(read_pairs(data, pos)))
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
