r"""The Open protocol's frames and JSON are TiCDC's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.etl.changes.messages import Message, MessageFormat, RowBatch, encoder_for, split_frames
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Index, Table
from tests.etl.changes.messages.open_reader import OpenReader
from tests.etl.changes.messages.orders import COMMIT_TS, ROW, batch_of
from tests.etl.changes.messages.recorded_messages import BUILT_MS

OPTIONS = MessageFormat("open-protocol")
KEY = b'{"ts":450000000000000000,"scm":"shop","tbl":"orders","t":1}'


def sent(batch: RowBatch) -> tuple[Message, dict[str, Any]]:
    (frame,) = encoder_for(OPTIONS).rows(batch).to_pylist()
    (message,) = split_frames(frame)
    value = message.value or b""
    assert int.from_bytes(value[:8], "big") == len(value) - 8
    return message, json.loads(value[8:])


def test_an_insert_is_ticdcs_byte_for_byte() -> None:
    message, _ = sent(batch_of(INSERT, new=ROW))
    assert message.key == bytes.fromhex("0000000000000001000000000000003b") + KEY
    assert (message.value or b"")[8:].decode() == (
        '{"u":{"id":{"t":8,"h":true,"f":139,"v":7},"note":{"t":15,"f":64,"v":"café"},'
        '"price":{"t":246,"f":1,"v":"12.50"},"st":{"t":247,"f":64,"v":2},'
        '"raw":{"t":15,"f":65,"v":"\\\\x89P\\\\xff"},'
        '"at":{"t":7,"f":65,"v":"2024-05-25 05:09:29.500"}}}'
    )


def test_an_update_has_the_row_before_and_a_delete_only_that() -> None:
    _, value = sent(batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00"}))
    assert list(value) == ["u", "p"]
    assert (value["u"]["price"]["v"], value["p"]["price"]["v"]) == ("13.00", "12.50")
    _, value = sent(batch_of(DELETE, old=ROW))
    assert list(value) == ["d"]


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        (Column(1, "n", 0, types.TEXT, charset="utf8mb4"), "hi", "aGk="),
        (Column(1, "n", 0, types.TEXT, charset="binary"), b"\x00", "AA=="),
        (Column(1, "n", 0, types.VARCHAR, charset="binary"), b'a"\\\n\x00\xc3\xa9',
         'a\\"\\\\\\n\\x00é'),
        (Column(1, "n", 0, types.BIT, flen=3), 5, 5),
        (Column(1, "n", 0, types.BIGINT, flag=types.FLAG_UNSIGNED), 2**64 - 1, 2**64 - 1),
        (Column(1, "n", 0, types.SET, elems=("a", "b", "c")), 5, 5),
        (Column(1, "n", 0, types.JSON), '{"a": 1}', '{"a": 1}'),
        (Column(1, "n", 0, types.FLOAT), None, None),
    ],
)  # fmt: skip
def test_values_are_the_protocols(column: Column, value: Any, shown: Any) -> None:
    table = Table(1, 1, "shop", "t", (column,))
    _, found = sent(batch_of(INSERT, new={"n": value}, table=table))
    assert found["u"]["n"]["v"] == shown


def test_flags_name_keys_and_generated_columns() -> None:
    not_null = types.FLAG_NOT_NULL
    table = Table(
        1,
        1,
        "shop",
        "t",
        (
            Column(1, "a", 0, types.INT, flag=not_null | types.FLAG_PRIMARY_KEY),
            Column(2, "b", 1, types.INT, flag=not_null | types.FLAG_PRIMARY_KEY),
            Column(3, "c", 2, types.INT),
            Column(4, "d", 3, types.INT, generated="`a` + 1", generated_stored=True),
        ),
        (
            Index(1, "PRIMARY", (("a", 0, -1), ("b", 1, -1)), unique=True, primary=True),
            Index(2, "c", (("c", 2, -1),), unique=True),
        ),
    )
    _, value = sent(batch_of(INSERT, new={"a": 1, "b": 2, "c": 3, "d": 4}, table=table))
    assert {name: column["f"] for name, column in value["u"].items()} == {
        "a": 1 | 2 | 8 | 32,
        "b": 1 | 2 | 8 | 32,
        "c": 1 | 16 | 64,
        "d": 1 | 4 | 64,
    }


def test_ddl_and_watermarks_are_messages_of_their_own() -> None:
    job = DdlJob(
        COMMIT_TS, type=Action.DROP_TABLE, query="DROP TABLE é", schema_name="shop", table_name="é"
    )
    (message,) = encoder_for(OPTIONS).ddl(job, BUILT_MS)
    assert json.loads((message.key or b"")[16:]) == {
        "ts": COMMIT_TS,
        "scm": "shop",
        "tbl": "é",
        "t": 2,
    }
    assert json.loads((message.value or b"")[8:]) == {"q": "DROP TABLE é", "t": 4}
    (message,) = encoder_for(OPTIONS).watermark(COMMIT_TS, BUILT_MS)
    assert message.value == bytes(8)
    assert (message.key or b"")[8:16] == (31).to_bytes(8, "big")
    reader = OpenReader()
    assert reader.read(message) is None
    assert reader.watermark == COMMIT_TS
