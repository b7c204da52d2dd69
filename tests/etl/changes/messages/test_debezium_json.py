"""Debezium's JSON has the connector's shape; lossless, only dates that don't exist are lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluice.etl.changes.messages import (
    AS_TICDC,
    Message,
    MessageFormat,
    RowBatch,
    TransactionPlace,
    encoder_for,
    split_frames,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.debezium_reader import DebeziumReader
from tests.etl.changes.messages.orders import (
    COMMIT_TS,
    DEBEZIUM_SOURCE,
    ORDERS,
    PHYSICAL_MS,
    ROW,
    START_TS,
    batch_of,
    images,
)
from tests.etl.changes.messages.recorded_messages import BUILT_MS

LOSSLESS = MessageFormat("debezium-json")
TICDC = MessageFormat("debezium-json", AS_TICDC)
WITH_SCHEMA = MessageFormat("debezium-json", with_schema=True)


def sent(options: MessageFormat, batch: RowBatch) -> list[Message]:
    (frame,) = encoder_for(options).rows(batch).to_pylist()
    return list(split_frames(frame))


def only(options: MessageFormat, batch: RowBatch) -> tuple[Any, Any]:
    (message,) = sent(options, batch)
    return json.loads(message.key or b"null"), json.loads(message.value or b"")


def encoded(options: MessageFormat, column: Column, value: Any) -> tuple[Any, Any]:
    """Return a value and its field's schema."""
    table = Table(1, 1, "shop", "t", (column,))
    batch = batch_of(INSERT, new={"n": value}, table=table)
    schema = MessageFormat(options.name, options.fidelity, with_schema=True)
    _, found = only(schema, batch)
    (field,) = found["schema"]["fields"][1]["fields"]
    return found["payload"]["after"]["n"], field


def test_an_insert_is_the_envelope_alone_without_schemas() -> None:
    key, value = only(LOSSLESS, batch_of(INSERT, new=ROW))
    assert key == {"id": "7"}
    assert value == {
        "source": DEBEZIUM_SOURCE,
        "ts_ms": BUILT_MS,
        "transaction": None,
        "op": "c",
        "before": None,
        "after": {
            "id": "7",
            "note": "café",
            "price": "12.50",
            "st": "paid",
            "raw": "iVD/",
            "at": "2024-05-25T05:09:29.500Z",
        },
    }


def test_an_insert_as_ticdc_has_its_payload_and_its_values() -> None:
    key, value = only(TICDC, batch_of(INSERT, new=ROW))
    assert key == {"payload": {"id": 7}}
    assert list(value) == ["payload"]
    assert value["payload"]["after"] == {
        "id": 7,
        "note": "café",
        "price": 12.5,
        "st": "paid",
        "raw": "iVD/",
        "at": "2024-05-25T05:09:29.500Z",
    }
    assert value["payload"]["source"] == {
        "version": "2.4.0.Final",
        "connector": "TiCDC",
        "name": "default",
        "ts_ms": PHYSICAL_MS,
        "snapshot": "false",
        "db": "shop",
        "table": "orders",
        "server_id": 0,
        "gtid": None,
        "file": "",
        "pos": 0,
        "row": 0,
        "thread": 0,
        "query": None,
        "commit_ts": COMMIT_TS,
        "cluster_id": "default",
    }


def test_schemas_have_debeziums_names_and_list_the_commit_ts_unless_as_ticdc() -> None:
    key, value = only(WITH_SCHEMA, batch_of(INSERT, new=ROW))
    assert key["schema"]["name"] == "default.shop.orders.Key"
    schema = value["schema"]
    assert schema["name"] == "default.shop.orders.Envelope"
    named = {field["field"]: field for field in schema["fields"]}
    assert named["after"]["name"] == "default.shop.orders.Value"
    source = {field["field"] for field in named["source"]["fields"]}
    assert source >= {"commit_ts", "start_ts"}
    ticdc = MessageFormat("debezium-json", AS_TICDC, with_schema=True)
    key, value = only(ticdc, batch_of(INSERT, new=ROW))
    assert key == {
        "payload": {"id": 7},
        "schema": {
            "type": "struct",
            "name": "default.shop.orders.Key",
            "optional": False,
            "fields": [{"field": "id", "type": "int64", "optional": False}],
        },
    }
    named = {field["field"]: field for field in value["schema"]["fields"]}
    assert "commit_ts" not in {field["field"] for field in named["source"]["fields"]}


def test_an_update_has_both_rows() -> None:
    _, value = only(LOSSLESS, batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00"}))
    assert value["op"] == "u"
    assert (value["before"]["price"], value["after"]["price"]) == ("12.50", "13.00")


def test_a_tombstone_with_the_same_key_follows_a_delete_unless_as_ticdc() -> None:
    deleted, tombstone = sent(LOSSLESS, batch_of(DELETE, old=ROW))
    value = json.loads(deleted.value or b"")
    assert (value["op"], value["before"]["id"], value["after"]) == ("d", "7", None)
    assert (tombstone.key, tombstone.value) == (deleted.key, None)
    assert dict(tombstone.headers)["commit_ts"] == str(COMMIT_TS).encode()
    (alone,) = sent(TICDC, batch_of(DELETE, old=ROW))
    assert alone.value is not None


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create() -> None:
    batch = batch_of(UPDATE, old=ROW, new=ROW | {"id": 8})
    deleted, tombstone, created = sent(LOSSLESS, batch)
    assert (deleted.key, tombstone.key, created.key) == (
        b'{"id":"7"}',
        b'{"id":"7"}',
        b'{"id":"8"}',
    )
    assert json.loads(deleted.value or b"")["op"] == "d"
    assert dict(deleted.headers)["__debezium.newkey"] == created.key
    assert tombstone.value is None
    assert json.loads(created.value or b"")["op"] == "c"
    assert dict(created.headers)["__debezium.oldkey"] == deleted.key
    assert [json.loads(m.value or b"")["payload"]["op"] for m in sent(TICDC, batch)] == ["d", "c"]


def test_with_schemas_headers_of_a_changed_key_are_strings_for_kafka_connect() -> None:
    """Its default converter takes an object for a map, and one of several types has no schema."""
    batch = batch_of(UPDATE, old=ROW, new=ROW | {"id": 8})
    deleted, _, created = sent(WITH_SCHEMA, batch)
    named = [
        json.loads(dict(message.headers)[name])
        for message, name in ((deleted, "__debezium.newkey"), (created, "__debezium.oldkey"))
    ]
    assert named == ['{"id":"8"}', '{"id":"7"}']
    keys = [json.loads(message.key or b"")["payload"] for message in (created, deleted)]
    assert [json.loads(each) for each in named] == keys


def test_updates_beside_one_that_changes_its_key_stay_in_their_places() -> None:
    rows = [ROW | {"id": number} for number in (1, 2, 3)]
    batch = RowBatch(
        ORDERS,
        UPDATE,
        images(ORDERS, rows),
        images(ORDERS, [rows[0], rows[1] | {"id": 9}, rows[2]]),
        np.full(3, COMMIT_TS),
        np.full(3, START_TS),
        BUILT_MS,
    )
    found = [list(split_frames(frame)) for frame in encoder_for(LOSSLESS).rows(batch).to_pylist()]
    assert [[message.key for message in messages] for messages in found] == [
        [b'{"id":"1"}'],
        [b'{"id":"2"}', b'{"id":"2"}', b'{"id":"9"}'],
        [b'{"id":"3"}'],
    ]


def test_a_table_without_a_key_has_null_keys_and_no_tombstones() -> None:
    table = Table(1, 1, "shop", "t", (Column(1, "n", 0, types.INT),))
    (message,) = sent(LOSSLESS, batch_of(DELETE, old={"n": 1}, table=table))
    assert message.key is None


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        (Column(1, "n", 0, types.DATE), "2024-02-29", 19782),
        (Column(1, "n", 0, types.DATE), "1000-01-01", -354285),
        (Column(1, "n", 0, types.DATE), "9999-12-31", 2932896),
        (Column(1, "n", 0, types.DATETIME), "2024-02-29 23:59:59", 1709251199000),
        (Column(1, "n", 0, types.DATETIME, decimal=6), "2024-02-29 23:59:59.123456",
         1709251199123456),
        (Column(1, "n", 0, types.TIME, decimal=6), "-00:00:00.028800", -28800),
        (Column(1, "n", 0, types.TIME), "838:59:59", 3020399000000),
        (Column(1, "n", 0, types.DATETIME), "0000-00-00 00:00:00", None),
        (Column(1, "n", 0, types.DATETIME, flag=types.FLAG_NOT_NULL), "0000-00-00 00:00:00", 0),
        (Column(1, "n", 0, types.TIMESTAMP, decimal=5), "2023-11-30 12:34:56.12346",
         "2023-11-30T12:34:56.12346Z"),
        (Column(1, "n", 0, types.BIT, flen=1), 1, True),
        (Column(1, "n", 0, types.BIT, flen=5), 16, "EA=="),
        (Column(1, "n", 0, types.BIT, flen=60), 16, "EAAAAAAAAAA="),
        (Column(1, "n", 0, types.VARCHAR, charset="utf8mb4", default="x"), None, None),
        (Column(1, "n", 0, types.ENUM, elems=("a",), default="a"), None, None),
        (Column(1, "n", 0, types.FLOAT), 12345.123046875, 12345.123),
        (Column(1, "n", 0, types.SET, elems=("a", "b", "c")), 5, "a,c"),
        (Column(1, "n", 0, types.ENUM, elems=("a",)), 0, ""),
        (Column(1, "n", 0, types.YEAR), 2024, 2024),
    ],
)  # fmt: skip
def test_values_are_debeziums(column: Column, value: Any, shown: Any) -> None:
    assert encoded(LOSSLESS, column, value)[0] == shown
    assert encoded(TICDC, column, value)[0] == shown


@pytest.mark.parametrize(
    ("column", "value", "lossless", "ticdc"),
    [
        (Column(1, "n", 0, types.BIGINT, flag=types.FLAG_UNSIGNED), 2**64 - 1,
         ("18446744073709551615", "string"), (-1, "int64")),
        (Column(1, "n", 0, types.DECIMAL, flen=10, decimal=2), "12.50",
         ("12.50", "string"), (12.5, "double")),
        (Column(1, "n", 0, types.TEXT, charset="binary"), b"\x00", ("AA==", "bytes"),
         ("AA==", "string")),
        (Column(1, "n", 0, types.SMALLINT, flag=types.FLAG_UNSIGNED), 65535,
         (65535, "int32"), (65535, "int32")),
        (Column(1, "n", 0, types.INT, flag=types.FLAG_UNSIGNED), 2**32 - 1,
         (2**32 - 1, "int64"), (2**32 - 1, "int64")),
    ],
)  # fmt: skip
def test_the_schemas_type_follows_the_fidelity(
    column: Column, value: Any, lossless: Any, ticdc: Any
) -> None:
    for options, expected in ((LOSSLESS, lossless), (TICDC, ticdc)):
        shown, field = encoded(options, column, value)
        assert (shown, field["type"]) == expected


def test_a_ddl_statement_has_its_database_as_key_and_truncate_an_op_of_its_own() -> None:
    job = DdlJob(
        COMMIT_TS,
        type=Action.TRUNCATE_TABLE,
        query="TRUNCATE t",
        schema_name="shop",
        table_name="t",
    )
    (ddl,) = encoder_for(LOSSLESS).ddl(job, BUILT_MS)
    truncated = encoder_for(LOSSLESS).truncation(job, BUILT_MS)
    assert json.loads(ddl.key or b"") == {"databaseName": "shop"}
    value = json.loads(ddl.value or b"")
    assert (value["databaseName"], value["ddl"]) == ("shop", "TRUNCATE t")
    assert value["source"]["commit_ts"] == COMMIT_TS
    assert truncated is not None and truncated.key is None
    value = json.loads(truncated.value or b"")
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)
    (alone,) = encoder_for(TICDC).ddl(job, BUILT_MS)
    assert "ddl" in json.loads(alone.value or b"")["payload"]
    assert encoder_for(TICDC).truncation(job, BUILT_MS) is None
    assert encoder_for(LOSSLESS).truncation(replace(job, type=Action.DROP_TABLE), BUILT_MS) is None


def test_a_ddl_statement_shows_the_tables_that_it_leaves() -> None:
    def changes(before: Table | None, after: Table | None, action: Action) -> Any:
        job = DdlJob(
            COMMIT_TS,
            type=action,
            schema_name="shop",
            table_name="orders",
            effect=DdlEffect(tables={ORDERS.id: after}),
            before={} if before is None else {ORDERS.id: before},
        )
        (message, *_) = encoder_for(WITH_SCHEMA).ddl(job, BUILT_MS)
        assert DebeziumReader().read(message) is None
        return json.loads(message.value or b"")["payload"]["tableChanges"]

    (created,) = changes(None, ORDERS, Action.CREATE_TABLE)
    assert (created["type"], created["id"]) == ("CREATE", '"shop"."orders"')
    assert created["table"]["primaryKeyColumnNames"] == ["id"]
    columns = {column["name"]: column for column in created["table"]["columns"]}
    assert (columns["id"]["typeName"], columns["id"]["optional"]) == ("BIGINT UNSIGNED", False)
    assert (columns["price"]["length"], columns["price"]["scale"]) == (10, 2)
    assert columns["st"]["enumValues"] == ["new", "paid", "sent"]
    (altered,) = changes(ORDERS, replace(ORDERS, name="orders2"), Action.RENAME_TABLE)
    assert (altered["type"], altered["id"]) == ("ALTER", '"shop"."orders","shop"."orders2"')
    (dropped,) = changes(ORDERS, None, Action.DROP_TABLE)
    assert (dropped["type"], dropped["table"]) == ("DROP", None)
    assert changes(ORDERS, ORDERS, Action.TRUNCATE_TABLE) == []


def test_a_watermark_is_an_envelope_with_op_m() -> None:
    (message,) = encoder_for(TICDC).watermark(COMMIT_TS, BUILT_MS)
    assert json.loads(message.key or b"") == {"payload": {}}
    payload = json.loads(message.value or b"")["payload"]
    assert (payload["op"], payload["source"]["commit_ts"]) == ("m", COMMIT_TS)
    assert (payload["source"]["db"], payload["source"]["table"]) == ("", "")


@pytest.mark.parametrize("options", [LOSSLESS, WITH_SCHEMA, TICDC])
def test_a_message_takes_its_place_in_the_transaction_unless_as_ticdc(
    options: MessageFormat,
) -> None:
    columns = (
        Column(1, "transaction", 0, types.BIGINT),
        Column(2, "op", 1, types.VARCHAR, flen=9, charset="utf8mb4"),
    )
    table = Table(1, 1, "shop", '","transaction":null,"op":"', columns)
    row = {"transaction": None, "op": ',"transaction":null,"op":'}
    (message,) = sent(options, batch_of(UPDATE, old=row, new=row, table=table))
    placed = encoder_for(options).in_transaction(message, TransactionPlace(3, 2))
    before, after = (json.loads(each.value or b"") for each in (message, placed))
    if options is not LOSSLESS:
        assert before.get("schema") == after.get("schema")
        before, after = before["payload"], after["payload"]
    block = {"id": str(COMMIT_TS), "total_order": 3, "data_collection_order": 2}
    assert after == before | {"transaction": None if options is TICDC else block}
    if options is WITH_SCHEMA:
        DebeziumReader().read(placed)


def test_a_tombstone_has_no_place() -> None:
    _, tombstone = sent(LOSSLESS, batch_of(DELETE, old=ROW))
    assert encoder_for(LOSSLESS).in_transaction(tombstone, TransactionPlace(3, 2)) == tombstone
