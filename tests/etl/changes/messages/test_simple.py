"""The Simple protocol has TiCDC's fields; rows name a schema that came in front of them."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest

from sluice.etl.changes.messages import (
    AS_TICDC,
    Bootstraps,
    Encoder,
    Message,
    MessageFormat,
    RowBatch,
    encoder_for,
    split_frames,
)
from sluice.etl.changes.messages.simple import BOOTSTRAP_INTERVAL_S, BOOTSTRAP_ROWS
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Column, Index, Table
from tests.etl.changes.messages.orders import COMMIT_TS, ORDERS, ROW, batch_of
from tests.etl.changes.messages.recorded_messages import BUILT_MS
from tests.etl.story import table

SIMPLE = MessageFormat("simple")
DATA = {
    "id": "7",
    "note": "café",
    "price": "12.50",
    "st": "2",
    "raw": "iVD/",
    "at": {"location": "UTC", "value": "2024-05-25 05:09:29.500"},
}


def frame_of(encoder: Encoder, batch: RowBatch) -> Message:
    (frame,) = encoder.rows(batch).to_pylist()
    (message,) = split_frames(frame)
    assert message.key is None
    return message


def sent(batch: RowBatch, options: MessageFormat = SIMPLE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(frame_of(encoder_for(options), batch).value or b"")
    return found


def schema_of(table: Table) -> dict[str, Any]:
    """Return the schema in the BOOTSTRAP in front of a table's first row."""
    encoder = encoder_for(SIMPLE)
    row = frame_of(encoder, batch_of(INSERT, new=dict.fromkeys(table_names(table)), table=table))
    due = Bootstraps().before(row, encoder.schemas, 1.0, BUILT_MS)
    assert due is not None
    found = json.loads(due.value or b"")
    schema: dict[str, Any] = found.pop("tableSchema")
    assert found == {"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "buildTs": BUILT_MS}
    assert json.loads(row.value or b"")["schemaVersion"] == schema["version"]
    return schema


def table_names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def test_a_checksum_is_tidbs_of_each_image_and_0_of_the_one_that_is_missing() -> None:
    checked = replace(SIMPLE, with_checksum=True)
    changed = ROW | {"note": None, "price": "13.00"}
    current, previous = 3732899573, 3665528107  # by TiDB's rule
    none = {"version": 0, "corrupted": False, "current": 0, "previous": 0}
    for batch, checksums in (
        (batch_of(INSERT, new=ROW), {"current": current}),
        (batch_of(DELETE, old=ROW), {"previous": current}),
        (batch_of(UPDATE, old=ROW, new=changed), {"previous": current, "current": previous}),
    ):
        assert sent(batch, checked)["checksum"] == none | checksums
        assert list(sent(batch, checked)).index("checksum") == list(sent(batch)).index(
            "data" if batch.new else "old"
        )
        assert "checksum" not in sent(batch)


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        ("c tinyint", -2, struct.pack("<q", -2)),
        ("c bigint", -(2**63), struct.pack("<q", -(2**63))),
        ("c bigint unsigned", 2**64 - 1, b"\xff" * 8),
        ("c year", 2023, struct.pack("<Q", 2023)),
        ("c varchar(9)", "foo", b"\3\0\0\0foo"),
        ("c varbinary(9)", b"", bytes(4)),
        ("c float", 3.140000104904175, struct.pack("<d", 3.140000104904175)),
        ("c double", 3.14, struct.pack("<d", 3.14)),
        ("c enum('a','b')", 2, struct.pack("<Q", 2)),
        ("c set('a','b','c')", 0b101, struct.pack("<Q", 0b101)),
        ("c bit(16)", 0x1234, struct.pack("<Q", 0x1234)),
        ("c datetime(3)", "2023-01-02 03:04:05.000", b"\x17\0\0\x002023-01-02 03:04:05.000"),
        ("c date", "0000-00-00", b"\x0a\0\0\x000000-00-00"),
        ("c time(6)", "08:07:00.123456", b"\x0f\0\0\x0008:07:00.123456"),
        ("c decimal(12,6)", "-999999.999999", b"\x0e\0\0\0-999999.999999"),
        ("c json", '{"a": 42, "foo": "bar"}', b'\x17\0\0\0{"a": 42, "foo": "bar"}'),
        ("c varchar(9)", None, b""),
    ],
)
def test_a_checksum_takes_the_bytes_that_tidb_takes(spec: str, value: Any, expected: bytes) -> None:
    made = table(9, "t", "id int", spec, primary="id")
    batch = batch_of(INSERT, new={"id": 1, "c": value}, table=made)
    found = sent(batch, replace(SIMPLE, with_checksum=True))["checksum"]["current"]
    assert found == zlib.crc32(struct.pack("<q", 1) + expected)


def test_a_checksum_and_the_schema_have_the_columns_in_the_order_of_their_ids() -> None:
    first, second, third = ORDERS.columns[:3]
    moved = replace(
        ORDERS,
        columns=(replace(third, offset=0), replace(first, offset=1), replace(second, offset=2)),
    )
    row = {name: ROW[name] for name in ("id", "note", "price")}
    in_order = replace(ORDERS, columns=ORDERS.columns[:3])
    checked = replace(SIMPLE, with_checksum=True)
    assert [column["name"] for column in schema_of(moved)["columns"]] == ["id", "note", "price"]
    checksums = [
        sent(batch_of(INSERT, new=row, table=each), checked)["checksum"]
        for each in (moved, in_order)
    ]
    assert checksums[0] == checksums[1]


def test_an_insert_has_ticdcs_fields_in_their_order() -> None:
    found = sent(batch_of(INSERT, new=ROW))
    version = found["schemaVersion"]
    assert list(found.items()) == [
        ("version", 1),
        ("database", "shop"),
        ("table", "orders"),
        ("tableID", 112),
        ("type", "INSERT"),
        ("commitTs", COMMIT_TS),
        ("buildTs", BUILT_MS),
        ("schemaVersion", version),
        ("data", DATA),
    ]
    assert 0 < version < 2**53


def test_an_update_has_both_rows_and_a_delete_the_old_one() -> None:
    found = sent(batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00", "raw": None}))
    assert (found["type"], found["old"]) == ("UPDATE", DATA)
    assert found["data"] == DATA | {"price": "13.00", "raw": None}
    found = sent(batch_of(DELETE, old=ROW))
    assert (found["type"], found["old"], "data" in found) == ("DELETE", DATA, False)


def test_a_timestamp_names_its_zone() -> None:
    shanghai = replace(SIMPLE, fidelity=AS_TICDC, time_zone="Asia/Shanghai")
    row = ROW | {"at": "2024-05-25 13:09:29.500"}  # the planner decodes it in the encoder's zone
    assert encoder_for(shanghai).time_zone == "Asia/Shanghai"
    assert sent(batch_of(INSERT, new=row), shanghai)["data"]["at"] == {
        "location": "Asia/Shanghai",
        "value": "2024-05-25 13:09:29.500",
    }


def test_a_tables_schema_has_the_types_that_values_need() -> None:
    schema = schema_of(ORDERS)
    columns = {column["name"]: column for column in schema["columns"]}
    assert list(schema) == ["schema", "table", "tableID", "version", "columns", "indexes"]
    assert list(columns) == list(ROW)
    assert columns["id"] == {
        "name": "id",
        "dataType": {
            "mysqlType": "bigint",
            "charset": "",
            "collate": "",
            "length": 20,
            "unsigned": True,
        },
        "nullable": False,
        "default": None,
    }
    assert columns["price"]["dataType"]["decimal"] == 2
    assert columns["st"]["dataType"]["elements"] == ["new", "paid", "sent"]
    assert columns["raw"]["dataType"]["mysqlType"] == "varbinary"
    assert columns["note"]["nullable"]
    assert schema["indexes"] == [
        {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": ["id"]}
    ]


def test_a_schemas_indexes_and_defaults_are_those_of_the_table() -> None:
    table = Table(
        9,
        1,
        "shop",
        "t",
        (
            Column(1, "a", 0, types.INT, flag=types.FLAG_NOT_NULL, default="5"),
            Column(2, "b", 1, types.BIT, flen=8, default=b"\x05"),
            Column(3, "c", 2, types.VARCHAR, charset="binary", default=b"\xff"),
        ),
        (
            Index(1, "ab", (("a", 0, -1), ("b", 1, -1)), unique=True),
            Index(2, "half", (("a", 0, -1),), state=1),
        ),
    )
    schema = schema_of(table)
    assert [column["default"] for column in schema["columns"]] == ["5", "5", "/w=="]
    assert schema["indexes"] == [
        {"name": "ab", "unique": True, "primary": False, "nullable": True, "columns": ["a", "b"]}
    ]


@pytest.mark.parametrize(
    "other",
    [
        replace(ORDERS, name="orders2"),
        replace(ORDERS, id=113),
        replace(ORDERS, columns=ORDERS.columns[:-1]),
        replace(ORDERS, indexes=(Index(1, "note", (("note", 1, -1),)),)),
    ],
)
def test_another_schema_has_another_version(other: Table) -> None:
    version = schema_of(ORDERS)["version"]
    assert schema_of(other)["version"] != version
    assert schema_of(replace(ORDERS, comment="x", auto_increment=9))["version"] == version


def test_a_bootstrap_comes_first_and_again_by_time_and_by_rows() -> None:
    encoder, bootstraps = encoder_for(SIMPLE), Bootstraps()
    row = frame_of(encoder, batch_of(INSERT, new=ROW))

    def is_due(now_s: float) -> bool:
        return bootstraps.before(row, encoder.schemas, now_s, BUILT_MS) is not None

    assert [is_due(1.0) for _ in range(BOOTSTRAP_ROWS + 1)].count(True) == 2
    assert not is_due(BOOTSTRAP_INTERVAL_S + 0.5)
    assert is_due(BOOTSTRAP_INTERVAL_S + 1.0)
    renamed = frame_of(encoder, batch_of(INSERT, new=ROW, table=replace(ORDERS, name="orders2")))
    due = bootstraps.before(renamed, encoder.schemas, 1.0, BUILT_MS)
    assert due is not None
    assert json.loads(due.value or b"")["tableSchema"]["table"] == "orders2"
    assert dict(due.headers)["table"] == b"shop.orders2"
    assert due.commit_ts == COMMIT_TS


def ddl(job: DdlJob) -> list[dict[str, Any]]:
    messages = encoder_for(SIMPLE).ddl(job, BUILT_MS)
    assert {message.commit_ts for message in messages} == {COMMIT_TS}
    return [json.loads(message.value or b"") for message in messages]


def test_ddl_has_the_schemas_before_and_after_it() -> None:
    after = replace(ORDERS, columns=(*ORDERS.columns, Column(7, "qty", 6, types.INT)))
    (found,) = ddl(
        DdlJob(
            COMMIT_TS,
            type=Action.ADD_COLUMN,
            query="ALTER TABLE orders ADD qty INT",
            schema_name="shop",
            table_name="orders",
            effect=DdlEffect(tables={112: after}),
            before={112: ORDERS},
        )
    )
    assert found == {
        "version": 1,
        "type": "ALTER",
        "sql": "ALTER TABLE orders ADD qty INT",
        "commitTs": COMMIT_TS,
        "buildTs": BUILT_MS,
        "tableSchema": schema_of(after),
        "preTableSchema": schema_of(ORDERS),
    }


def test_ddl_of_other_kinds_names_the_tables_that_it_has() -> None:
    create = DdlJob(COMMIT_TS, type=Action.CREATE_TABLE, effect=DdlEffect(tables={112: ORDERS}))
    (found,) = ddl(create)
    assert (found["type"], found["tableSchema"]) == ("CREATE", schema_of(ORDERS))
    assert "preTableSchema" not in found
    drop = DdlJob(
        COMMIT_TS,
        type=Action.DROP_TABLE,
        effect=DdlEffect(tables={112: None}),
        before={112: ORDERS},
    )
    (found,) = ddl(drop)
    assert (found["type"], found["tableSchema"]) == ("ERASE", schema_of(ORDERS))
    assert found["preTableSchema"] == schema_of(ORDERS)
    (found,) = ddl(DdlJob(COMMIT_TS, type=Action.CREATE_SCHEMA, query="CREATE DATABASE shop"))
    assert (found["type"], "tableSchema" in found) == ("QUERY", False)


def test_a_watermark_has_nothing_but_its_commit_ts() -> None:
    (message,) = encoder_for(SIMPLE).watermark(COMMIT_TS, BUILT_MS)
    assert message.value == (
        b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":%d}' % (COMMIT_TS, BUILT_MS)
    )
