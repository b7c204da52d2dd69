"""Avro has TiCDC's bytes and schemas; lossless, no value, no NULL and no delete is lost."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.messages import (
    AS_TICDC,
    Message,
    MessageFormat,
    RowBatch,
    encoder_for,
    split_frames,
)
from sluice.etl.changes.messages.avro_binary import decimal_number
from sluice.etl.changes.steps import ChangeError
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.avro_reader import record_of
from tests.etl.changes.messages.orders import (
    COMMIT_TS,
    ORDERS,
    PHYSICAL_MS,
    ROW,
    batch_of,
)
from tests.etl.changes.messages.schema_ids import id_of, identified

LOSSLESS = MessageFormat("avro")
TICDC = MessageFormat("avro", AS_TICDC)
_NOT_NULL = types.FLAG_NOT_NULL


def sent(options: MessageFormat, batch: RowBatch) -> list[Message]:
    encoder = encoder_for(options)
    (frame,) = encoder.rows(batch).to_pylist()
    return list(identified(split_frames(frame), encoder.schemas))


def table_of(*columns: Column) -> Table:
    return Table(1, 1, "shop", "t", columns)


def encoded(options: MessageFormat, column: Column, value: Any) -> tuple[Any, Any]:
    """Return a value as fastavro reads it, and its field."""
    (message,) = sent(options, batch_of(INSERT, new={"n": value}, table=table_of(column)))
    document, record = record_of(message.value or b"")
    return record["n"], document["fields"][0]


def value_schema(options: MessageFormat, table: Table) -> Any:
    return json.loads(encoder_for(options).table_schemas(table)[-1].text)


def test_an_insert_has_ticdcs_bytes() -> None:
    (message,) = sent(TICDC, batch_of(INSERT, new=ROW))
    key_id, value_id = map(id_of, encoder_for(TICDC).table_schemas(ORDERS))
    assert message.key == b"\0" + key_id.to_bytes(4, "big") + bytes.fromhex("0e")
    columns = "0e 02 0a636166c3a9 04 04e2 02 08 70616964 02 06 8950ff 02 2e"
    end = "02 63 8080e8ceb4a7dcbe0c f6a4bbe2f563"
    assert message.value == (
        b"\0" + value_id.to_bytes(4, "big") + bytes.fromhex(columns)
        + b"2024-05-25 05:09:29.500" + bytes.fromhex(end)
    )  # fmt: skip


def test_the_schemas_are_ticdcs() -> None:
    key, value = (json.loads(each.text) for each in encoder_for(TICDC).table_schemas(ORDERS))
    parts = [(each.record, each.part) for each in encoder_for(TICDC).table_schemas(ORDERS)]
    assert parts == [("default.shop.orders", "key"), ("default.shop.orders", "value")]
    bigint = {"type": "long", "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"}}
    assert key == {
        "type": "record",
        "name": "orders",
        "namespace": "default.shop",
        "fields": [{"name": "id", "type": bigint}],
    }
    assert value["fields"][1] == {
        "name": "note",
        "type": ["null", {"type": "string", "connect.parameters": {"tidb_type": "TEXT"}}],
        "default": None,
    }
    assert value["fields"][2] == {
        "name": "price",
        "type": {
            "type": "bytes",
            "connect.parameters": {"tidb_type": "DECIMAL"},
            "logicalType": "decimal",
            "precision": 10,
            "scale": 2,
        },
    }
    assert value["fields"][3]["type"][1]["connect.parameters"] == {
        "tidb_type": "ENUM",
        "allowed": "new,paid,sent",
    }
    assert [(f["name"], f["type"], f["default"]) for f in value["fields"][6:]] == [
        ("_tidb_op", "string", ""),
        ("_tidb_commit_ts", "long", 0),
        ("_tidb_commit_physical_time", "long", 0),
    ]
    plain = replace(TICDC, tidb_extension=False)
    assert len(value_schema(plain, ORDERS)["fields"]) == 6


def test_a_delete_is_a_tombstone_as_ticdc_and_has_the_row_in_front_of_it_lossless() -> None:
    batch = batch_of(DELETE, old=ROW)
    (only,) = sent(TICDC, batch)
    (inserted,) = sent(TICDC, batch_of(INSERT, new=ROW))
    assert (only.key, only.value) == (inserted.key, None)
    assert dict(only.headers)["commit_ts"] == b"%d" % COMMIT_TS
    row, tombstone = sent(LOSSLESS, batch)
    assert (tombstone.key, tombstone.value) == (row.key, None)
    _, record = record_of(row.value or b"")
    assert record["_tidb_op"] == "d"
    assert record["_ticdc_before"]["price"] == record["price"] == Decimal("12.50")
    assert record["_tidb_commit_physical_time"] == PHYSICAL_MS


def test_a_delete_that_no_message_could_name_is_refused_with_the_way_out() -> None:
    keyless = replace(ORDERS, pk_is_handle=False)
    with pytest.raises(ChangeError, match=r"'shop\.orders' has no key.*fidelity = 'lossless'"):
        sent(TICDC, batch_of(DELETE, old=ROW, table=keyless))
    (message,) = sent(LOSSLESS, batch_of(DELETE, old=ROW, table=keyless))
    assert message.key is None
    assert record_of(message.value or b"")[1]["_ticdc_before"]["note"] == "café"


def test_an_update_has_the_row_before_it_lossless() -> None:
    batch = batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00"})
    (message,) = sent(LOSSLESS, batch)
    _, record = record_of(message.value or b"")
    assert (record["_tidb_op"], record["price"]) == ("u", Decimal("13.00"))
    assert record["_ticdc_before"]["price"] == Decimal("12.50")
    (message,) = sent(TICDC, batch)
    _, record = record_of(message.value or b"")
    assert (record["_tidb_op"], record["price"]) == ("u", Decimal("13.00"))
    assert "_ticdc_before" not in record


@pytest.mark.parametrize(("options", "count"), [(LOSSLESS, 3), (TICDC, 2)])
def test_a_changed_key_removes_the_old_one_and_creates_the_new_one(
    options: MessageFormat, count: int
) -> None:
    messages = sent(options, batch_of(UPDATE, old=ROW, new=ROW | {"id": 8}))
    assert len(messages) == count
    *_, removed, created = messages
    assert (record_of(removed.key or b"")[1], removed.value) == ({"id": key(options, 7)}, None)
    assert record_of(created.key or b"")[1] == {"id": key(options, 8)}
    assert record_of(created.value or b"")[1]["_tidb_op"] == "c"


def key(options: MessageFormat, number: int) -> int | str:
    return str(number) if options.is_lossless else number


def test_a_large_unsigned_number_wraps_as_ticdc_and_is_text_lossless() -> None:
    column = Column(1, "n", 0, types.BIGINT, flag=types.FLAG_UNSIGNED, flen=20)
    assert encoded(TICDC, column, 2**64 - 1)[0] == -1
    value, field = encoded(LOSSLESS, column, 2**64 - 1)
    assert (value, field["type"][1]["type"]) == ("18446744073709551615", "string")
    unsigned = replace(column, tp=types.INT)
    assert encoded(TICDC, unsigned, 2**32 - 1)[0] == 2**32 - 1


def test_null_stays_null_beside_a_default() -> None:
    column = Column(1, "n", 0, types.VARCHAR, flen=9, charset="utf8mb4", default="x")
    for options in (LOSSLESS, TICDC):
        assert encoded(options, column, None)[0] is None
        assert encoded(options, column, "y")[0] == "y"
    first = {options.fidelity: encoded(options, column, None)[1] for options in (LOSSLESS, TICDC)}
    assert first["lossless"]["type"][0] == "null"
    assert (first[AS_TICDC]["type"][1], first[AS_TICDC]["default"]) == ("null", "x")


def test_bits_are_the_fewest_bytes_the_highest_first() -> None:
    column = Column(1, "n", 0, types.BIT, flen=17)
    found = {n: encoded(TICDC, column, n)[0] for n in (0, 5, 256, 2**16)}
    assert found == {0: b"\0", 5: b"\5", 256: b"\1\0", 2**16: b"\1\0\0"}


def test_columns_whose_names_avro_takes_for_one_stay_apart() -> None:
    columns = [Column(i + 1, name, i, types.INT) for i, name in enumerate(("a b", "a_b", "1é"))]
    fields = value_schema(LOSSLESS, table_of(*columns))["fields"][:3]
    assert [field["name"] for field in fields] == ["a_b", "a_b_2", "_1_"]
    named = [field["type"][1]["connect.parameters"].get("column") for field in fields]
    assert named == ["a b", "a_b", "1é"]


# fastavro leaves a default of bytes as the schema has it, a character a byte
ADDED = (
    ({"tp": types.INT, "origin_default": "5"}, 5),
    ({"tp": types.VARCHAR, "flen": 9, "charset": "utf8mb4", "origin_default": "é"}, "é"),
    ({"tp": types.DOUBLE, "origin_default": "1.5"}, 1.5),
    ({"tp": types.ENUM, "elems": ("new", "paid"), "origin_default": "paid"}, "paid"),
    ({"tp": types.TEXT, "charset": "binary", "origin_default": b"\xff\0"}, "\xff\0"),
    ({"tp": types.BIT, "flen": 9, "origin_default": b"\1\0"}, "\1\0"),
    ({"tp": types.TIMESTAMP, "origin_default": "2024-05-25 05:09:29"}, "2024-05-25 05:09:29"),
    (
        {"tp": types.BIGINT, "flag": _NOT_NULL | types.FLAG_UNSIGNED, "origin_default": "7"},
        "7",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "expected"), ADDED)
def test_a_new_reader_gives_old_rows_what_tidb_gives_them(
    shape: dict[str, Any], expected: Any
) -> None:
    added = Column(7, "extra", 6, **{"flag": _NOT_NULL, **shape})
    after = replace(ORDERS, columns=(*ORDERS.columns, added))
    record = read_by(after, sent(LOSSLESS, batch_of(UPDATE, old=ROW, new=ROW)))
    assert record["extra"] == record["_ticdc_before"]["extra"] == expected


def test_an_old_reader_reads_rows_with_a_new_column_and_without_a_dropped_one() -> None:
    added = Column(7, "qty", 6, types.INT)
    after = replace(ORDERS, columns=(*ORDERS.columns, added))
    new_row = ROW | {"qty": 3}
    (message,) = sent(LOSSLESS, batch_of(INSERT, new=new_row, table=after))
    assert "qty" not in read_by(ORDERS, [message])
    (message,) = sent(LOSSLESS, batch_of(INSERT, new=ROW))
    assert read_by(after, [message])["qty"] is None


def read_by(table: Table, messages: Sequence[Message]) -> Any:
    """Return a value's record in the schema of another definition of the table."""
    value = messages[0].value or b""
    writer, _ = record_of(value)
    reader = value_schema(LOSSLESS, table)
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), writer, reader)


_SCALE, _DIGITS = 3, 40


@given(st.integers(-(10**_DIGITS), 10**_DIGITS), st.integers(4, 60))
def test_a_decimal_has_the_fewest_bytes_of_its_twos_complement(number: int, precision: int) -> None:
    size = f"{abs(number):0{_SCALE + 1}}"
    text = f"{'-' * (number < 0)}{size[:-_SCALE]}.{size[-_SCALE:]}"
    raw = decimal_number(text, _SCALE)
    assert int.from_bytes(raw, "big", signed=True) == number
    assert len(raw) == 1 or number not in range(-(2 ** (8 * len(raw) - 9)), 2 ** (8 * len(raw) - 9))
    precision = max(precision, len(size))
    column = Column(1, "n", 0, types.DECIMAL, flen=precision, decimal=_SCALE)
    options = replace(TICDC, tidb_extension=False)
    (message,) = sent(options, batch_of(INSERT, new={"n": text}, table=table_of(column)))
    assert (message.value or b"")[5:] == b"\2" + bytes([2 * len(raw)]) + raw
