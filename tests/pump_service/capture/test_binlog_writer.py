"""The sink of a capture: order of the records, definitions, parts of large transactions, a full
disk.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.capture import binlog_writer
from sluice.pump_service.capture.binlog_writer import BinlogWriter, CaptureWriteError
from sluice.pump_service.capture.ddl_jobs import DDL_JOB_TABLE_ID
from sluice.pump_service.capture.schema_tracker import SchemaTracker, UnknownTableError
from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.pump_service.store import NoSpaceError, Record, StoreFailedError
from sluice.tidb import pb
from sluice.tidb.codec import CodecError
from sluice.tidb.codec.memcomparable import encode_bytes, encode_int
from sluice.tidb.record_keys import record_key
from sluice.tidb.tikv.meta import hash_field_key, history_job_key, string_key, table_key
from tests.pump_service.storekit import MemoryStore
from tests.tidb.test_stored_rows import pairs_of, version_1, version_2, zigzag

USER, SYSTEM = 2, 1
PLAIN, PARTED, BOOTSTRAP = 50, 60, 20
PARTITIONS = (61, 62)
COMING = 69
HEAP, HEAP_PARTITION = 70, 71
"""A partitioned table whose rows have hidden row ids, and are identified by a unique key of c1."""


def table_info(
    table_id: int, columns: int = 2, partitions: Sequence[int] = (), adding: Sequence[int] = ()
) -> bytes:
    types = {
        "Tp": 3,
        "Flag": 0,
        "Flen": -1,
        "Decimal": -1,
        "Charset": "binary",
        "Collate": "binary",
    }
    cols = [
        {
            "id": n + 1,
            "name": {"O": f"c{n}"},
            "offset": n,
            "state": 5,
            "type": types | {"Flag": 3 if n == 0 else 0},
        }
        for n in range(columns)
    ]
    parted = {
        "enable": True,
        "definitions": [{"id": i} for i in partitions],
        "adding_definitions": [{"id": i} for i in adding],
    }
    info = {
        "id": table_id,
        "name": {"O": f"t{table_id}"},
        "cols": cols,
        "pk_is_handle": True,
        "state": 5,
    }
    return json.dumps(info | {"partition": parted if partitions else None}).encode()


def heap_info() -> bytes:
    info = json.loads(table_info(HEAP, partitions=[HEAP_PARTITION]))
    index = {
        "id": 1,
        "idx_name": {"O": "u"},
        "idx_cols": [{"name": {"O": "c1"}, "offset": 1, "length": -1}],
        "is_unique": True,
        "state": 5,
    }
    return json.dumps(info | {"pk_is_handle": False, "index_info": [index]}).encode()


def tracker() -> SchemaTracker:
    databases = [
        (hash_field_key("DBs", f"DB:{i}".encode()), n)
        for i, n in ((USER, "shop"), (SYSTEM, "mysql"))
    ]
    definitions = [
        (key, json.dumps({"id": 0, "db_name": {"O": name}}).encode()) for key, name in databases
    ]
    definitions = [
        (key, value.replace(b'"id": 0', f'"id": {i}'.encode()))
        for (key, value), i in zip(definitions, (USER, SYSTEM), strict=True)
    ]
    tables = [
        (table_key(USER, PLAIN), table_info(PLAIN)),
        (table_key(USER, PARTED), table_info(PARTED, partitions=PARTITIONS, adding=[COMING])),
        (table_key(USER, HEAP), heap_info()),
        (table_key(SYSTEM, BOOTSTRAP), table_info(BOOTSTRAP)),
    ]
    return SchemaTracker([*definitions, *tables], 7)


def stored(*values: int) -> bytes:
    return version_1({n + 2: b"\x08" + zigzag(value) for n, value in enumerate(values)})


def change(table: int, handle: int, old: int | None, new: int | None) -> KeyChange:
    images = [b"" if value is None else stored(value) for value in (old, new)]
    return KeyChange(record_key(table, encode_int(handle)), images[1], images[0], new is None)


def transaction(
    start_ts: int, commit_ts: int, *changes: KeyChange, source: int = 0
) -> CapturedTransaction:
    return CapturedTransaction(start_ts, commit_ts, source, sorted(changes))


def ddl(
    start_ts: int, commit_ts: int, *tables: bytes, job_id: int = 99, version: int = 8
) -> CapturedTransaction:
    """ALTER TABLE of each of these definitions in the last step of a job."""
    job = {
        "id": job_id,
        "type": 5,
        "state": 4,
        "schema_state": 5,
        "query": "alter table",
        "schema_id": USER,
    }
    row = b"\x08\x02" + b"\x02" + zigzag(9) + json.dumps(job, separators=(",", ":")).encode()
    keys = [
        KeyChange(table_key(USER, json.loads(info)["id"]), info, b"x", False) for info in tables
    ]
    diff = KeyChange(string_key(f"Diff:{version}"), b"{}", b"", False)
    return transaction(
        start_ts,
        commit_ts,
        *keys,
        diff,
        KeyChange(record_key(DDL_JOB_TABLE_ID, encode_int(job_id)), row, b"", False),
    )


def written(store: MemoryStore) -> list[tuple[int, int, int, Any]]:
    """tp, start_ts, commit_ts of each record, and its message."""
    found = []
    for record in store.records:
        message = pb.binlog.Binlog.FromString(record.payload)
        assert (message.tp, message.start_ts, message.commit_ts) == record[:3]
        found.append((*record[:3], message))
    return found


def rows_of(message: Any) -> list[tuple[int, str, list[tuple[int, bytes]]]]:
    """Table id, kind and pairs of each change in the order in which it is applied.

    Of an insert its handle first.
    """
    found = []
    for mutation in pb.binlog.PrewriteValue.FromString(message.prewrite_value).mutations:
        lists = {
            0: iter(mutation.inserted_rows),
            1: iter(mutation.updated_rows),
            4: iter(mutation.deleted_rows),
        }
        for kind in mutation.sequence:
            row = next(lists[kind])
            pairs = pairs_of(b"\x08\x02" + row) if kind == 0 else pairs_of(row)
            found.append((mutation.table_id, {0: "insert", 1: "update", 4: "delete"}[kind], pairs))
    return found


def value(number: int) -> bytes:
    return b"\x08" + zigzag(number)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.integers(1, 40),
            st.sampled_from([PLAIN, *PARTITIONS, COMING, BOOTSTRAP]),
        ),
        unique_by=lambda each: each[1],
        max_size=12,
    ),
    st.integers(6, 9),
)
def test_every_transaction_with_rows_has_one_record_in_order_and_the_frontier_comes_last(
    drawn: list[tuple[int, int, int]], resolved_ts: int
) -> None:
    store, schema = MemoryStore(), tracker()
    writer = BinlogWriter(store, schema)  # type: ignore[arg-type]
    commits = sorted((100 + commit, 50 + start, table) for commit, start, table in drawn)
    writer.advance(
        (transaction(s, c, change(t, 1, None, s)) for c, s, t in commits), 100 + resolved_ts
    )
    *records, frontier = written(store)
    assert frontier[:3] == (2, 100 + resolved_ts, 100 + resolved_ts)
    expected = [(0, s, c) for c, s, t in commits if t not in (COMING, BOOTSTRAP)]
    assert [record[:3] for record in records] == expected
    assert writer.resolved_ts == store.max_commit_ts == 100 + resolved_ts
    logical = {PLAIN: PLAIN, 61: PARTED, 62: PARTED}
    for (commit_ts, start_ts, message), (_, s, t) in zip(
        [(r[2], r[1], r[3]) for r in records],
        [each for each in commits if each[2] in logical],
        strict=True,
    ):
        assert rows_of(message) == [(logical[t], "insert", [(1, value(1)), (2, value(s))])], (
            commit_ts,
            start_ts,
        )


def test_a_frontier_that_does_not_move_is_not_written_again() -> None:
    store = MemoryStore(max_commit_ts=500)
    BinlogWriter(store, tracker()).advance(iter(()), 500)  # type: ignore[arg-type]
    assert store.records == []


def test_rows_of_one_commit_ts_with_a_ddl_are_read_by_the_definition_before_it_and_come_first() -> (
    None
):
    store, schema = MemoryStore(), tracker()
    writer = BinlogWriter(store, schema)  # type: ignore[arg-type]
    changed = table_info(PLAIN, columns=3)
    insert = KeyChange(record_key(PLAIN, encode_int(5)), stored(1, 2), b"", False)
    transactions = [ddl(10, 20, changed), transaction(11, 20, insert), transaction(12, 21, insert)]
    writer.advance(iter(transactions), 21)
    found = written(store)
    assert [each[:3] for each in found] == [(0, 11, 20), (0, 10, 20), (0, 12, 21), (2, 21, 21)]
    assert rows_of(found[0][3])[0][2] == [(1, value(5)), (2, value(1))]
    assert rows_of(found[2][3])[0][2] == [(1, value(5)), (2, value(1)), (3, value(2))]
    versions = [
        pb.binlog.PrewriteValue.FromString(found[n][3].prewrite_value).schema_version
        for n in (0, 2)
    ]
    assert versions == [7, 8]
    message = found[1][3]
    assert (message.ddl_job_id, message.ddl_schema_state, message.ddl_query) == (
        99,
        5,
        b"alter table",
    )
    assert not message.HasField("prewrite_value")


def test_a_job_that_is_written_twice_in_one_state_has_one_binlog() -> None:
    store = MemoryStore()
    BinlogWriter(store, tracker()).advance(iter([ddl(10, 20), ddl(21, 22)]), 30)  # type: ignore[arg-type]
    assert [each[:3] for each in written(store)] == [(0, 10, 20), (2, 30, 30)]


JOB_VERSION_2 = {
    "id": 120, "version": 2, "type": 3, "state": 4, "schema_state": 5,
    "schema_id": USER, "table_id": PLAIN,
    "query": "create table t50(a int)", "raw_args": {"table_info": {"id": PLAIN}, "fk_check": True},
    "binlog": {"SchemaVersion": 8, "DBInfo": None, "TableInfo": None, "FinishedTS": 0},
    "session_vars": {"sql_mode": "x"}, "local_mode": False, "bdr_role": "", "sql_mode": 1436549152,
}  # fmt: skip
"""As TiDB 8.4 and newer write them."""


@pytest.mark.parametrize("state", range(8))
def test_a_job_has_a_binlog_when_it_is_done_or_rolled_back(state: int) -> None:
    text = json.dumps(JOB_VERSION_2 | {"state": state}, separators=(",", ":")).encode()
    row = version_2({1: value(120), 3: b"\x02\x02" + b"2", 5: b"\x02" + zigzag(len(text)) + text})
    key = record_key(DDL_JOB_TABLE_ID, encode_int(120))
    store = MemoryStore()
    step = transaction(10, 20, KeyChange(key, row, b"x", False))
    BinlogWriter(store, tracker()).advance(iter([step]), 20)  # type: ignore[arg-type]
    found = [(m.ddl_job_id, m.ddl_query.decode()) for tp, _, _, m in written(store) if tp == 0]
    assert found == ([(120, "create table t50(a int)")] if state in (3, 4) else [])


def test_a_job_of_the_list_that_tidb_had_before_6_2_has_a_binlog() -> None:
    text = json.dumps(JOB_VERSION_2 | {"version": 1, "raw_args": None}).encode()
    key = b"m" + encode_bytes(b"DDLJobList") + ord("l").to_bytes(8, "big") + encode_int(0)
    store = MemoryStore()
    step = transaction(10, 20, KeyChange(key, text, b"x", False))
    BinlogWriter(store, tracker()).advance(iter([step]), 20)  # type: ignore[arg-type]
    assert [m.ddl_job_id for tp, _, _, m in written(store) if tp == 0] == [120]


@pytest.mark.parametrize("has_row", [False, True])
def test_a_table_that_is_created_without_a_running_job_has_one_binlog(has_row: bool) -> None:
    """As TiDB 8.0 to 8.2 may do: table and history in one transaction."""
    job = JOB_VERSION_2 | {"state": 6}
    history = KeyChange(history_job_key(120), json.dumps(job).encode(), b"", False)
    table = KeyChange(table_key(USER, PLAIN), table_info(PLAIN), b"", False)
    store = MemoryStore()
    steps = [transaction(30, 40, history, table)]
    if has_row:  # the usual way: the table comes with the job's last step, then the history
        steps = [ddl(10, 20, table_info(PLAIN), job_id=120), transaction(30, 40, history)]
    BinlogWriter(store, tracker()).advance(iter(steps), 40)  # type: ignore[arg-type]
    assert [(m.ddl_job_id, c) for tp, _, c, m in written(store) if tp == 0] == [
        (120, 20 if has_row else 40)
    ]


def test_a_row_that_moves_to_another_partition_is_deleted_before_it_is_inserted() -> None:
    store = MemoryStore()
    moved = [
        change(61, 7, None, 3),
        change(62, 7, 2, None),
        change(61, 8, 1, 2),
        change(PLAIN, 1, 4, 4),
    ]
    BinlogWriter(store, tracker()).advance(iter([transaction(10, 20, *moved)]), 20)  # type: ignore[arg-type]
    kinds = [(table_id, kind) for table_id, kind, _ in rows_of(written(store)[0][3])]
    assert kinds == [(PARTED, "delete"), (PARTED, "update"), (PARTED, "insert")]


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 500))
def test_values_that_identify_rows_of_a_heap_table_pass_from_row_to_row_in_one_transaction(
    before: list[int], after: list[int], limit: int
) -> None:
    olds = [key if key < 6 else None for key in before]
    news = [key if key < 6 else None for key in after]
    changes = [
        change(HEAP_PARTITION, handle, old, new)
        for handle, (old, new) in enumerate(zip(olds, news, strict=True))
        if (old, new) != (None, None)
    ]
    store = MemoryStore()
    writer = BinlogWriter(store, tracker(), limit)  # type: ignore[arg-type]
    writer.advance(iter([transaction(1_000_000, 2_000_000, *changes)]), 2_000_000)
    handles = {value(key): value(handle) for handle, key in enumerate(olds) if key is not None}
    for record in written(store)[:-1]:
        for _, kind, pairs in rows_of(record[3]):
            (key,) = {datum for column, datum in pairs if column == 2}
            if kind == "delete":
                del handles[key]
            else:
                assert kind == "insert" and key not in handles
                handles[key] = pairs[0][1]
    assert handles == {
        value(key): value(handle) for handle, key in enumerate(news) if key is not None
    }


@given(
    st.lists(
        st.tuples(st.sampled_from([61, 62, PLAIN, HEAP_PARTITION]), st.integers(0, 30)),
        unique=True,
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_a_large_transaction_is_stored_in_parts_with_the_same_changes_in_an_applicable_order(
    places: list[tuple[int, int]], limit: int, is_apart: bool, is_shared: bool, data: st.DataObject
) -> None:
    images = st.one_of(
        st.tuples(st.none(), st.integers(0, 9)),
        st.tuples(st.integers(0, 9), st.none() | st.just(10)),
    )
    changes = [change(table, handle, *data.draw(images)) for table, handle in places]
    whole, split = MemoryStore(), MemoryStore()
    earlier = transaction(
        1_000_000 - binlog_writer.MAX_PARTS - is_apart, 2_000_000, change(PLAIN, 99, None, 1)
    )
    large = transaction(1_000_000, 2_000_000, *changes)
    BinlogWriter(whole, tracker()).advance(iter([earlier, large]), 2_000_000)  # type: ignore[arg-type]
    writer = BinlogWriter(split, tracker(), limit, is_shared=is_shared)  # type: ignore[arg-type]
    writer.advance(iter([earlier, large]), 2_000_000)
    parts = written(split)[1:-1]
    found = [row for part in parts for row in rows_of(part[3])]
    expected = rows_of(written(whole)[1][3])
    assert sorted(found) == sorted(expected)
    for table_id in (PARTED, PLAIN, HEAP):
        kinds = [
            ("delete", "update", "insert").index(kind)
            for owner, kind, _ in found
            if owner == table_id
        ]
        assert kinds == sorted(kinds)
    starts = [start_ts for _, start_ts, _, _ in parts]
    assert (
        starts == sorted(set(starts))
        and earlier.start_ts not in starts
        and max(starts) <= large.start_ts
    )
    assert len({commit_ts for _, _, commit_ts, _ in parts}) == 1
    # They name the transaction, unless the other one's rows would lie between theirs then. In a
    # share of the tables they lie behind it.
    assert not is_shared or min(starts) > earlier.start_ts
    owners = {each[3].part_of_start_ts for each in parts}
    is_split = starts != [large.start_ts]
    assert owners == ({large.start_ts} if is_split and (is_apart or is_shared) else {0})
    assert all(len(each[3].prewrite_value) <= limit + 200 for each in parts)


@pytest.mark.parametrize("limit", [1, 1 << 20], ids=["in parts", "whole"])
@pytest.mark.parametrize("table", [PLAIN, HEAP_PARTITION])
def test_a_row_that_cannot_be_read_is_named_with_its_table_also_in_a_large_transaction(
    table: int, limit: int
) -> None:
    first, damaged = change(table, 1, 1, 2), change(table, 2, 1, 2)._replace(old_value=b"\x80")
    writer = BinlogWriter(MemoryStore(), tracker(), limit)  # type: ignore[arg-type]
    name = {PLAIN: f"t{PLAIN} .id {PLAIN}", HEAP_PARTITION: f"t{HEAP} .id {HEAP_PARTITION}"}[table]
    with pytest.raises(CodecError, match=rf"shop.*{name}.*key {damaged.key.hex()} at commit_ts 9"):
        writer.advance(iter([transaction(5, 9, first, damaged)]), 9)


def test_parts_of_a_share_that_do_not_fit_behind_the_transaction_before_are_refused() -> None:
    changes = [change(PLAIN, handle, None, 1) for handle in range(9)]
    for apart in (8, 9, 10):
        written = [transaction(100 - apart, 200, change(PLAIN, 99, None, 1))]
        written.append(transaction(100, 200, *changes))
        writer = BinlogWriter(MemoryStore(), tracker(), 1, is_shared=True)  # type: ignore[arg-type]
        if apart == 10:
            writer.advance(iter(written), 200)
        else:
            with pytest.raises(binlog_writer.CaptureWriteError, match="more parts"):
                writer.advance(iter(written), 200)


class CountedChanges:
    """Changes that come from disk, and how often they were read."""

    def __init__(self, changes: list[KeyChange]) -> None:
        self._changes, self.reads = changes, 0

    def __iter__(self) -> Iterator[KeyChange]:
        self.reads += 1
        return iter(self._changes)


@pytest.mark.parametrize(("old", "new", "reads"), [(None, 1, 3), (1, 2, 3), (1, None, 2)])
def test_changes_of_a_large_transaction_are_not_read_for_kinds_that_it_lacks(
    old: int | None, new: int | None, reads: int
) -> None:
    changes = CountedChanges([change(PLAIN, handle, old, new) for handle in range(30)])
    store = MemoryStore()
    writer = BinlogWriter(store, tracker(), 20)  # type: ignore[arg-type]
    writer.advance(iter([CapturedTransaction(10**6, 2 * 10**6, 0, changes)]), 2 * 10**6)
    assert (writer.rows, changes.reads) == (30, reads) and len(store.records) > 5


def test_rows_that_tidb_converts_for_modify_column_are_left_out() -> None:
    store = MemoryStore()
    filled = transaction(10, 20, change(PLAIN, 1, 2, 3), source=1 << 8)
    BinlogWriter(store, tracker()).advance(iter([filled]), 20)  # type: ignore[arg-type]
    assert [each[:3] for each in written(store)] == [(2, 20, 20)]


def test_a_row_of_a_table_that_no_key_has_defined_ends_the_capture() -> None:
    with pytest.raises(UnknownTableError, match="commit_ts 20 belongs to table 77"):
        BinlogWriter(MemoryStore(), tracker()).advance(  # type: ignore[arg-type]
            iter([transaction(10, 20, change(77, 1, None, 1))]), 20
        )


def test_a_row_of_a_table_that_is_gone_is_left_out() -> None:
    store = MemoryStore()
    dropped = transaction(10, 20, KeyChange(table_key(USER, PLAIN), b"", b"x", True))
    late = transaction(15, 21, change(PLAIN, 1, None, 1))
    BinlogWriter(store, tracker()).advance(iter([dropped, late]), 21)  # type: ignore[arg-type]
    assert [each[:3] for each in written(store)] == [(2, 21, 21)]


def test_two_jobs_in_one_transaction_are_an_error() -> None:
    one, other = ddl(10, 20), ddl(10, 20, job_id=98)
    both = CapturedTransaction(10, 20, 0, sorted({*one.changes, *other.changes}))
    with pytest.raises(CaptureWriteError, match="has 2 DDL jobs: 98, 99"):
        BinlogWriter(MemoryStore(), tracker()).advance(iter([both]), 20)  # type: ignore[arg-type]


class FailingStore(MemoryStore):
    """Answers the first submissions with these errors."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self._errors = collections.deque(errors)

    def submit(
        self, records: Sequence[Record], done: Callable[[BaseException | None], None]
    ) -> None:
        if self._errors:
            done(self._errors.popleft())
        else:
            super().submit(records, done)


def some(count: int) -> Iterator[CapturedTransaction]:
    return (transaction(10 + n, 10_000 + n, change(PLAIN, n, None, n)) for n in range(count))


def test_a_full_disk_is_waited_for_and_the_order_of_the_records_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binlog_writer, "_SPACE_CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(binlog_writer, "_GROUP_RECORDS", 3)
    store = FailingStore(NoSpaceError(1, 2), NoSpaceError(1, 2))
    BinlogWriter(store, tracker()).advance(some(10), 20_000)  # type: ignore[arg-type]
    assert [each[1] for each in written(store)] == [*range(10, 20), 20_000]


def test_a_store_that_fails_ends_the_capture() -> None:
    with pytest.raises(StoreFailedError):
        BinlogWriter(FailingStore(StoreFailedError("x")), tracker()).advance(some(1), 20_000)  # type: ignore[arg-type]


def test_a_long_catch_up_can_be_read_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binlog_writer, "_FRONTIER_INTERVAL_BYTES", 100)
    store = MemoryStore()
    BinlogWriter(store, tracker()).advance(some(10), 20_000)  # type: ignore[arg-type]
    frontiers = [each[2] for each in written(store) if each[0] == 2]
    assert len(frontiers) > 2 and frontiers == sorted(frontiers)
    for number, record in enumerate(store.records):
        if record.tp == 2:
            assert all(later.commit_ts > record.commit_ts for later in store.records[number + 1 :])


@pytest.mark.parametrize("value_bytes", [1 << 20, 1], ids=["whole", "in parts"])
def test_a_row_that_an_exchange_put_into_a_wrong_partition_keeps_its_former_table(
    value_bytes: int,
) -> None:
    """TiDB's binlog names the table, too: landing stops there."""
    store, schema = MemoryStore(), tracker()
    writer = BinlogWriter(store, schema, value_bytes)  # type: ignore[arg-type]
    whole = json.loads(table_info(PARTED, partitions=(PLAIN, 62)))
    for definition, bound in zip(whole["partition"]["definitions"], ("10", "20"), strict=True):
        definition |= {"name": {"O": f"p{bound}", "L": f"p{bound}"}, "less_than": [bound]}
    whole["partition"] |= {"type": 1, "expr": "`c0`"}
    exchange = transaction(
        110,
        115,
        KeyChange(table_key(USER, PLAIN), b"", b"x", True),
        KeyChange(table_key(USER, 61), table_info(61), b"", False),
        KeyChange(table_key(USER, PARTED), json.dumps(whole).encode(), b"x", False),
    )
    writer.advance(
        iter(
            [
                transaction(90, 114, change(PLAIN, 16, None, 1)),
                exchange,
                transaction(100, 120, change(PLAIN, 5, None, 1), change(PLAIN, 15, None, 1)),
                transaction(101, 121, change(PLAIN, 5, 1, 2), change(PLAIN, 15, 1, 2)),
                transaction(102, 122, change(PLAIN, 15, 2, None), change(62, 15, None, 1)),
                transaction(116, 123, change(PLAIN, 5, 2, 3)),
            ]
        ),
        200,
    )
    found = {
        (commit_ts, table_id, kind, pairs[0][1])
        for _, _, commit_ts, message in written(store)
        for table_id, kind, pairs in rows_of(message)
    }
    assert found == {
        (114, PLAIN, "insert", value(16)),
        (120, PARTED, "insert", value(5)),
        (120, PLAIN, "insert", value(15)),
        (121, PARTED, "update", value(5)),
        (121, PLAIN, "update", value(15)),
        (122, PARTED, "delete", value(15)),
        (122, PARTED, "insert", value(15)),
        (123, PARTED, "update", value(5)),
    }
