"""What TiKV sent becomes binlogs that give, applied in order, what TiDB showed at every snapshot:
all columns.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.ddl_jobs import DDL_JOB_TABLE_ID
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.capture.transactions import CapturedTransaction
from sluice.tidb import pb
from sluice.tidb.codec.column_value import from_datum, missing_value
from sluice.tidb.codec.datum import decode_datum
from sluice.tidb.codec.memcomparable import decode_bytes
from sluice.tidb.codec.row import HANDLE_ID, read_pairs
from sluice.tidb.schema import Column, Table
from tests import recorded_changes
from tests.pump_service.storekit import MemoryStore

Row = dict[int, Any]
MOVING = {20, 23, 42}
"""Types of the jobs DROP, TRUNCATE and EXCHANGE PARTITION."""


class Downstream:
    """Applies binlogs: rows by table id and key, each by column id.

    It has definitions from the schema keys alone.
    """

    def __init__(self) -> None:
        self.definitions: dict[int, Table] = {}
        self.databases: dict[int, str] = {}
        self.rows: dict[int, dict[Any, Row]] = collections.defaultdict(dict)
        self._keys: dict[int, set[int]] = collections.defaultdict(set)

    def note_keys(self, transaction: CapturedTransaction) -> None:
        """Keeps in which partition each row with an integer handle lies: no binlog says it."""
        for change in transaction.changes:
            if change.key[:1] == b"t" and len(change.key) == 19:
                physical_id, handle = (
                    int.from_bytes(change.key[a:b], "big") - (1 << 63)
                    for a, b in ((1, 9), (11, 19))
                )
                (
                    self._keys[physical_id].discard
                    if change.is_delete
                    else self._keys[physical_id].add
                )(handle)

    def move_partitions(self, transaction: CapturedTransaction) -> None:
        """Does a DDL that takes partitions with their rows away or to another table."""
        before = {table_id: partition_ids(table) for table_id, table in self.definitions.items()}
        lying: dict[int, dict[Any, Row]] = {}
        for table_id, ids in before.items():
            for i in ids:
                own = self.rows[table_id].items()
                lying[i] = {
                    key: row
                    for key, row in own
                    if len(ids) == 1 or (row.get(HANDLE_ID) or key[0]) in self._keys[i]
                }
        self.define(transaction)
        for table_id, table in self.definitions.items():
            if before.get(table_id) != partition_ids(table):
                found = [lying.get(i, {}) for i in partition_ids(table)]
                self.rows[table_id] = {key: row for rows in found for key, row in rows.items()}

    def define(self, transaction: CapturedTransaction) -> None:
        changes = [(key_parts(c.key), c.value) for c in transaction.changes if c.key[:1] == b"m"]
        found = [(parts, value) for parts, value in changes if parts is not None]
        for (name, field), value in found:
            if name == b"DBs" and value:
                self.databases[int(field[3:])] = json.loads(value)["db_name"]["O"]
        for (name, field), value in sorted(found, key=lambda each: bool(each[1])):
            if not (name.startswith(b"DB:") and field.startswith(b"Table:")):
                continue
            schema_id, table_id = int(name[3:]), int(field[6:])
            if value:
                info = json.loads(value)
                self.definitions[table_id] = Table.from_tidb(
                    info, schema_id, self.databases[schema_id]
                )
            elif self.definitions[table_id].schema_id == schema_id:
                del self.definitions[table_id]

    def apply(self, value: Any) -> None:
        for mutation in value.mutations:
            table = self.definitions[mutation.table_id]
            own = self.rows[mutation.table_id]
            lists = {
                0: iter(mutation.inserted_rows),
                1: iter(mutation.updated_rows),
                4: iter(mutation.deleted_rows),
            }
            for kind in mutation.sequence:
                row = next(lists[kind])
                if kind == 0:
                    inserted = self._insert(table, row)
                    assert identity(table, inserted) not in own, (table.full_name, inserted)
                    own[identity(table, inserted)] = inserted
                    continue
                pairs = [(i, datum) for i, datum, _ in read_pairs(row, 0)]
                size = len(pairs) // (2 if kind == 1 else 1)
                old = self._values(table, pairs[:size])
                there = own.pop(identity(table, old))
                assert {i: filled(table, there, i) for i in old} == old, table.full_name
                if kind == 1:
                    new = self._values(table, pairs[size:])
                    own[identity(table, new)] = there | new
            assert all(next(rest, None) is None for rest in lists.values())

    def _insert(self, table: Table, row: bytes) -> Row:
        pos, handle = 0, {}
        if table.handle_kind == "common":
            assert table.primary_index is not None
            for _, offset, _ in table.primary_index.columns:
                datum, pos = decode_datum(row, pos)
                handle[table.columns[offset].id] = datum
        else:
            datum, pos = decode_datum(row, 0)
            handle[HANDLE_ID if table.handle_column is None else table.handle_column.id] = datum
        pairs = {i: datum for i, datum, _ in read_pairs(row, pos)}
        return self._values(table, [*(handle | pairs).items()])

    @staticmethod
    def _values(table: Table, pairs: Iterable[tuple[int, Any]]) -> Row:
        by_id = {c.id: c for c in table.columns}
        return {
            i: datum.value if i == HANDLE_ID else from_datum(by_id[i], datum) for i, datum in pairs
        }


def partition_ids(table: Table) -> list[int]:
    return (
        [d["id"] for d in table.partition["definitions"]]
        if table.is_partitioned and table.partition
        else [table.id]
    )


def identity(table: Table, row: Row) -> Any:
    if table.handle_kind == "heap":
        return row[HANDLE_ID]
    key = table.primary_key
    return tuple(filled(table, row, c.id) for c in table.columns if c.name in key)


def filled(table: Table, row: Row, column_id: int) -> Any:
    if column_id in row:
        return row[column_id]
    return missing_value(next(c for c in table.columns if c.id == column_id))


def key_parts(key: bytes) -> tuple[bytes, bytes] | None:
    name, pos = decode_bytes(key, 1)
    return (name, decode_bytes(key, pos + 8)[0]) if key[pos + 7] == ord("h") else None


def shown(column: Column, value: Any) -> Any:
    """A value as snapshots have it."""
    if value is None:
        return None
    if column.kind == "bit":
        return {"hex": f"{value:X}"}
    if column.kind == "binary":
        return {"hex": value.hex().upper()}
    if column.kind == "text":
        return value.decode()
    return value if column.kind in ("float", "double") else str(value)


def check(downstream: Downstream, snapshot: recorded_changes.Snapshot) -> int:
    """Compares all tables of a snapshot; returns the number of rows."""
    compared = 0
    for table_id, rows in snapshot.rows.items():
        table = downstream.definitions[table_id]
        assert table.full_name == snapshot.names[table_id]
        visible = [c for c in table.columns if c.public and not c.hidden]
        places = [n for n, c in enumerate(visible) if not c.virtual]
        expected = collections.Counter(repr([values[n] for n in places]) for values in rows)
        found = collections.Counter(
            repr([shown(visible[n], filled(table, row, visible[n].id)) for n in places])
            for row in downstream.rows[table_id].values()
        )
        assert found == expected, (snapshot.label, table.full_name)
        compared += len(rows)
    return compared


def replay(
    transactions: Iterable[CapturedTransaction],
    writer: BinlogWriter,
    store: MemoryStore,
    downstream: Downstream,
) -> Iterator[int]:
    """Hands over the transactions of one commit timestamp after the other, and yields each."""
    by_commit: dict[int, list[CapturedTransaction]] = collections.defaultdict(list)
    for each in transactions:
        by_commit[each.commit_ts].append(each)
    for commit_ts, group in sorted(by_commit.items()):
        yield commit_ts
        store.records.clear()
        writer.advance(iter(group), commit_ts)
        assert [(r.tp, r.commit_ts) for r in store.records[-1:]] == [(2, commit_ts)]
        for record in store.records[:-1]:
            message = pb.binlog.Binlog.FromString(record.payload)
            assert (message.tp, message.commit_ts, message.start_ts) == (
                0,
                commit_ts,
                record.start_ts,
            )
            assert message.start_ts in {each.start_ts for each in group}
            if not message.ddl_job_id:
                downstream.apply(pb.binlog.PrewriteValue.FromString(message.prewrite_value))
        for each in group:
            downstream.note_keys(each)
            types = [json.loads(m)["type"] for m in jobs_of(each)]
            (downstream.move_partitions if MOVING & {*types} else downstream.define)(each)
    yield 1 << 63


def jobs_of(transaction: CapturedTransaction) -> Iterator[str]:
    """The jobs of `mysql.tidb_ddl_job` that a transaction wrote."""
    for change in transaction.changes:
        at = change.value.find(b'{"id":')
        if change.key[:9] == b"t" + (DDL_JOB_TABLE_ID + (1 << 63)).to_bytes(8, "big") and at >= 0:
            text = change.value[at:].decode("utf-8", "replace")
            yield text[: json.JSONDecoder().raw_decode(text)[1]]


@pytest.mark.parametrize("name", recorded_changes.NAMES)
def test_the_binlogs_of_recorded_changes_give_every_snapshot_of_tidb(name: str) -> None:
    begin = recorded_changes.checkpoint_ts(name)
    store, downstream = MemoryStore(), Downstream()
    writer = BinlogWriter(store, SchemaTracker((), 0))  # type: ignore[arg-type]
    earlier = (
        [] if name == recorded_changes.WHOLE_HISTORY else recorded_changes.history_through(begin)
    )
    snapshots = list(recorded_changes.snapshots(name))
    compared = []
    for commit_ts in replay(
        [*earlier, *recorded_changes.transactions(name)], writer, store, downstream
    ):
        while snapshots and snapshots[0].tso < commit_ts:
            compared.append(check(downstream, snapshots.pop(0)))
    assert not snapshots and max(compared) > 0


def test_each_ddl_of_a_recording_has_one_binlog_with_the_job_that_the_history_has() -> None:
    name = "05-ddl"
    store, downstream = MemoryStore(), Downstream()
    writer = BinlogWriter(store, SchemaTracker((), 0))  # type: ignore[arg-type]
    for _ in replay(
        recorded_changes.history_through(recorded_changes.checkpoint_ts(name)),
        writer,
        store,
        downstream,
    ):
        pass
    found: dict[int, list[Any]] = collections.defaultdict(list)
    history: dict[int, Any] = {}
    finished_at: dict[int, int] = {}
    for each in recorded_changes.transactions(name):
        store.records.clear()
        if each.commit_ts == writer.resolved_ts:
            continue
        group = [t for t in recorded_changes.transactions(name) if t.commit_ts == each.commit_ts]
        writer.advance(iter(group), each.commit_ts)
        for record in store.records[:-1]:
            message = pb.binlog.Binlog.FromString(record.payload)
            if message.ddl_job_id:
                found[message.ddl_job_id].append(message)
        for change in (c for t in group for c in t.changes if c.key[:1] == b"m"):
            parts = key_parts(change.key)
            if parts is not None and parts[0] == b"DDLJobHistory":
                job = json.loads(change.value)
                history[job["id"]] = job
                finished_at[job["id"]] = each.commit_ts
    assert len(history) > 50
    for job_id, job in history.items():
        messages = found.pop(job_id, [])
        # it failed before its first step, or is one of ALTER TABLE CACHE, of which no binlog is
        # sent
        if not messages:
            assert (job["state"], job["binlog"]["SchemaVersion"]) == (5, 0) or job["type"] in (
                57,
                59,
            ), job
            continue
        assert [m.ddl_query.decode() for m in messages] == [job["query"]] * len(messages)
        assert messages[-1].commit_ts < finished_at[job_id]
        states = [m.ddl_schema_state for m in messages]
        if job["type"] == 6 and job["state"] == 6:
            assert states == [1, job["schema_state"]]
        else:
            assert states == [job["schema_state"]]
    assert not found
