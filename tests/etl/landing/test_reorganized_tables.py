"""Landing knows in which windows TiDB may have written rows of a table twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import InitialSchema, SchemaRebuilder
from sluice.relay import WindowRecord
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.relay.storage import open_storage
from sluice.tidb import PDClient, TiKVClient
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.history import SchemaHistory
from sluice.tidb.schema import SchemaError
from sluice.tidb.tikv import Mvcc, MvccWrite
from sluice.tidb.tikv.meta import hash_prefix, string_key, table_key
from tests.etl.landing.test_ddl_order import Clock, document, info, record
from tests.etl.landing.test_schema_then import History

_SCHEMA = {
    "id": 2,
    "db_name": {"O": "d", "L": "d"},
    "charset": "utf8mb4",
    "collate": "utf8mb4_bin",
    "state": 5,
}
_RUNNING_IN = {"id": 281, "name": {"O": "tidb_ddl_job", "L": "tidb_ddl_job"}}
_VERSIONS = range(8, 13)
"""Of the job that reorganizes table 30."""


def table(*ids: int, adding: tuple[int, ...] = ()) -> dict[str, Any]:
    definitions = {
        name: [
            {"id": i, "name": {"O": f"p{i}", "L": f"p{i}"}, "less_than": ["MAXVALUE"]} for i in own
        ]
        for name, own in (("definitions", ids), ("adding_definitions", adding))
    }
    return info(30, "t", "a") | {
        "partition": {"type": 1, "expr": "`a`", "enable": True, **definitions}
    }


def jobs(*, is_done: bool = True) -> list[dict[str, Any]]:
    job = document(13, 64, 12, table(41))
    return [
        document(10, 1, 5, None, DBInfo=_SCHEMA),
        document(11, 3, 6, table(40)),
        job if is_done else job | {"state": 3},
        document(14, 3, 13, info(31, "other", "a")),
    ]


class Meta(History):
    """The history and the versions of the job. `running`: the rows of mysql.tidb_ddl_job."""

    def __init__(self, documents: list[dict[str, Any]], running: tuple[bytes, ...] = ()) -> None:
        super().__init__(documents)
        diffs = {v: {"version": v, "table_id": 30, "type": 64} for v in _VERSIONS}
        self._values |= {
            string_key(f"Diff:{v}"): json.dumps(diff).encode() for v, diff in diffs.items()
        }
        self._running = running

    def get(self, key: bytes, ts: int) -> bytes | None:
        if key == table_key(2, 30):
            known = table(40) if ts < 85 else table(40, adding=(41,)) if ts < 120 else table(41)
            return json.dumps(known).encode()
        return super().get(key, ts)

    def mvcc_get_many(self, keys: list[bytes]) -> dict[bytes, Mvcc]:
        return {key: Mvcc(None, (MvccWrite(0, 119, 120), MvccWrite(0, 84, 85))) for key in keys}

    def scan(
        self, start: bytes, end: bytes, ts: int, limit: int = 256, *, keys_only: bool = False
    ) -> Any:
        if start == hash_prefix("DBs"):
            return iter(
                [(b"", json.dumps({"id": 1, "db_name": {"O": "mysql", "L": "mysql"}}).encode())]
            )
        if start == hash_prefix("DB:1"):
            return iter([(b"", json.dumps(_RUNNING_IN).encode())])
        if start == b"t" + encode_int(281) + b"_r":
            return iter([(b"key", row) for row in self._running])
        return super().scan(start, end, ts, limit, keys_only=keys_only)


def rebuilder(tikv: Meta) -> SchemaRebuilder:
    return SchemaRebuilder(cast(TiKVClient, tikv), 1 << 60, old_collations=False)


def landing(tikv: Meta, version: int = 6, doubled: dict[int, bool] | None = None) -> LandingSchema:
    history, known, _ = rebuilder(tikv).at_version(version)
    return LandingSchema(
        history,
        cast(PDClient, Clock()),
        cast(TiKVClient, tikv),
        None,
        known,
        lambda early: history,
        doubled=doubled,
    )


def land(
    schema: LandingSchema, first: int, last: int, version: int, *ddls: int, differ: bool = False
) -> RecordedSchema:
    """Land a window of rows committed from `first` to `last` by a schema version, and DDL jobs."""
    spans = {30: TableSpan(2, first, last, version, version)}
    found = schema.resolve([record(i) for i in ddls], spans, lambda seconds: False)
    return schema.with_doubled(found, schema.written_twice if differ else ())


def test_a_table_is_looked_at_from_the_first_version_of_the_job_until_it_is_over() -> None:
    schema = landing(Meta(jobs()))
    assert land(schema, 60, 70, 7).doubled == {} and not schema.written_twice
    assert land(schema, 90, 100, 8).doubled == {30: False} and schema.written_twice == {30}
    assert land(schema, 125, 126, 11, 13).doubled == {} and schema.written_twice == {30}
    late = 131 + (10_000 << 18)
    assert land(schema, 132, late, 13).doubled == {} and schema.written_twice == {30}, (
        "it may have begun before"
    )
    land(schema, late + 1, late + 2, 13)
    assert not schema.written_twice


def test_a_job_that_was_rolled_back_is_over_as_well() -> None:
    schema = landing(Meta(jobs(is_done=False)))
    land(schema, 90, 100, 8)
    assert land(schema, 125, 126, 12, 13).doubled == {} and schema.written_twice == {30}
    land(schema, 200 + (10_000 << 18), 201 + (10_000 << 18), 12)
    assert not schema.written_twice


def test_other_row_ids_are_remembered_until_the_ddl_and_mark_it_also_behind_a_restart() -> None:
    schema = landing(Meta(jobs()))
    described = land(schema, 90, 100, 8, differ=True)
    record = WindowRecord.from_json(
        described.write_to(WindowRecord(89, 100, 7, "t", 0, 1, 2, 6)).to_json()
    )
    assert RecordedSchema.from_window(record).doubled == {30: True}
    again = landing(Meta(jobs()), doubled={int(i): differ for i, differ in record.doubled.items()})
    assert land(again, 101, 102, 8).doubled == {30: True}
    (ddl,) = land(again, 125, 126, 11, 13).ddls
    assert (
        ddl.row_ids_differ
        and not land(landing(Meta(jobs())), 125, 126, 11, 13).ddls[0].row_ids_differ
    )


def test_a_snapshot_of_the_schema_knows_when_the_last_job_was_over() -> None:
    history = landing(Meta(jobs()), 12)._history
    assert SchemaHistory.from_json(json.loads(json.dumps(history.to_json()))).written_twice == {
        30: 131
    }


def test_a_transaction_may_have_written_to_the_partitions_of_every_definition_meanwhile() -> None:
    schema = landing(Meta(jobs()))
    known = schema._history.tables[30]
    assert schema.physical_ids(known, 60, 70) == {30, 40}
    assert schema.physical_ids(known, 60, 90) == {30, 40, 41}
    assert schema.physical_ids(known, 90, 130) == {30, 40, 41}


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_start_over_a_long_ddl_history_reads_each_job_once(
    tmp_path: Path, *, is_kept: bool
) -> None:
    """The jobs behind the landed version also show which tables are being reorganized."""
    created = [document(100 + n, 3, 20 + n, info(1000 + n, f"t{n}", "a")) for n in range(600)]
    reorganized = [document(900 + n, 64, 700 + n, info(1000 + n, f"t{n}", "a")) for n in range(100)]
    begin = InitialSchema(20 + 299, snapshots=SchemaSnapshots(open_storage(tmp_path.as_uri())))
    documents = [*jobs(), *created, *reorganized]
    if is_kept:
        LandingSchema.load(
            cast(PDClient, Clock()), cast(TiKVClient, Meta(documents)), begin, "true"
        )
    tikv = Meta(documents)
    landing = LandingSchema.load(cast(PDClient, Clock()), cast(TiKVClient, tikv), begin, "true")
    assert tikv.read == (300 + 100 if is_kept else 4 + 600 + 100)
    assert landing.with_doubled(RecordedSchema({}, (), (), 319), ()).doubled == {
        1000 + n: False for n in range(100)
    }


@pytest.mark.parametrize(
    ("running", "documents", "expected"),
    [
        ((), jobs(), {30}),
        ((), jobs()[:2], set()),
        (
            (b'\x80\0\1\0{"id":13,"type":64,"table_id":30,"state":1,"binlog":{}}@',),
            jobs()[:2],
            {30},
        ),
        (
            (b'\x80\0\1\0{"id":13,"type":7,"table_id":30,"state":1,"binlog":{}}@',),
            jobs()[:2],
            set(),
        ),
    ],
)
def test_landing_that_begins_in_the_middle_of_a_job_knows_its_table(
    running: tuple[bytes, ...], documents: list[dict[str, Any]], expected: set[int]
) -> None:
    assert rebuilder(Meta(documents, running)).at_version(9).reorganized == expected
    with pytest.raises(SchemaError, match=r"tidb_ddl_job holds no DDL job"):
        rebuilder(Meta([], (b"\x80\0{}",))).at_version(9)
