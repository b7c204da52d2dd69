"""Debezium's Avro has the connector's envelope, exact decimals, and takes every column."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from decimal import Decimal

import fastavro

from sluice.etl.changes.messages import (
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
from tests.etl.changes.messages.avro_reader import record_of
from tests.etl.changes.messages.orders import (
    COMMIT_TS,
    DEBEZIUM_SOURCE,
    ORDERS,
    ROW,
    START_TS,
    batch_of,
)
from tests.etl.changes.messages.recorded_messages import BUILT_MS
from tests.etl.changes.messages.schema_ids import identified

OPTIONS = MessageFormat("debezium-avro")
AFTER = {
    "id": "7",
    "note": "café",
    "price": Decimal("12.50"),
    "st": "paid",
    "raw": b"\x89P\xff",
    "at": "2024-05-25T05:09:29.500Z",
}


def sent(batch: RowBatch) -> list[Message]:
    encoder = encoder_for(OPTIONS)
    (frame,) = encoder.rows(batch).to_pylist()
    return list(identified(split_frames(frame), encoder.schemas))


def test_an_insert_is_the_connectors_envelope() -> None:
    (message,) = sent(batch_of(INSERT, new=ROW))
    key_schema, key = record_of(message.key or b"")
    schema, value = record_of(message.value or b"")
    assert (key_schema["connect.name"], key) == ("default.shop.orders.Key", {"id": "7"})
    assert (schema["namespace"], schema["name"]) == ("default.shop.orders", "Envelope")
    assert value == {
        "before": None,
        "after": AFTER,
        "source": DEBEZIUM_SOURCE,
        "op": "c",
        "ts_ms": BUILT_MS,
        "transaction": None,
    }


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create() -> None:
    deleted, tombstone, created = sent(batch_of(UPDATE, old=ROW, new=ROW | {"id": 8}))
    assert (tombstone.key, tombstone.value) == (deleted.key, None)
    assert record_of(deleted.value or b"")[1]["op"] == "d"
    assert record_of(created.value or b"")[1]["after"]["id"] == "8"


def test_a_date_that_does_not_exist_is_null_and_in_a_key_the_epoch() -> None:
    column = Column(1, "d", 0, types.DATE, flag=types.FLAG_NOT_NULL | types.FLAG_PRIMARY_KEY)
    table = Table(1, 1, "shop", "t", (column,), pk_is_handle=True)
    message, _ = sent(batch_of(DELETE, old={"d": "2024-02-30"}, table=table))
    assert record_of(message.value or b"")[1]["before"] == {"d": None}
    assert record_of(message.key or b"")[1] == {"d": 0}


def test_readers_of_the_tables_earlier_and_later_schemas_read_each_other() -> None:
    added = Column(7, "qty", 6, types.INT, flag=types.FLAG_NOT_NULL)
    later = replace(ORDERS, columns=(*ORDERS.columns[1:], added))
    for written, read, row in ((ORDERS, later, ROW), (later, ORDERS, ROW | {"qty": 3})):
        (message,) = sent(batch_of(INSERT, new=row, table=replace(written, pk_is_handle=False)))
        value = message.value or b""
        writer, _ = record_of(value)
        reader = json.loads(encoder_for(OPTIONS).table_schemas(read)[-1].text)
        found = fastavro.schemaless_reader(io.BytesIO(value[5:]), writer, reader)
        assert isinstance(found, dict)
        assert found["after"]["note"] == "café"
        assert found["after"].get("id", found["after"].get("qty")) is None


def test_truncate_is_an_op_under_the_tables_schema_and_other_ddl_has_no_message() -> None:
    encoder = encoder_for(OPTIONS)
    job = DdlJob(
        COMMIT_TS,
        START_TS,
        query="TRUNCATE TABLE orders",
        type=Action.TRUNCATE_TABLE,
        schema_name="shop",
        table_name="orders",
        effect=DdlEffect(tables={113: ORDERS}),
    )
    truncation = encoder.truncation(job, BUILT_MS)
    assert truncation is not None
    (message,) = identified([truncation], encoder.schemas)
    assert message.key is None
    assert encoder.schemas == encoder.table_schemas(ORDERS)[1:]
    _, value = record_of(message.value or b"")
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)
    assert value["source"]["table"] == "orders"
    assert encoder.ddl(job, BUILT_MS) == []
    assert encoder.truncation(replace(job, type=Action.ADD_COLUMN), BUILT_MS) is None


def test_a_message_takes_its_place_in_the_transaction_and_a_tombstone_has_none() -> None:
    deleted, tombstone = sent(batch_of(DELETE, old=ROW))
    encoder, place = encoder_for(OPTIONS), TransactionPlace(300, 2)
    placed = encoder.in_transaction(deleted, place)
    before, after = (record_of(each.value or b"")[1] for each in (deleted, placed))
    block = {"id": str(COMMIT_TS), "total_order": 300, "data_collection_order": 2}
    assert after == before | {"transaction": block}
    assert encoder.in_transaction(tombstone, place) == tombstone
