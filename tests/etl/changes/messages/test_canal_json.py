"""Canal-JSON has TiCDC's shape, loses no value unless asked to, and rebuilds every table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.etl.changes.messages import (
    AS_TICDC,
    MessageFormat,
    RowBatch,
    encoder_for,
    split_frames,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.orders import COMMIT_TS, PHYSICAL_MS, ROW, batch_of
from tests.etl.changes.messages.recorded_messages import BUILT_MS

TICDC = MessageFormat("canal-json", AS_TICDC)


def sent(options: MessageFormat, batch: RowBatch) -> list[dict[str, Any]]:
    found = []
    for frame in encoder_for(options).rows(batch).to_pylist():
        (message,) = split_frames(frame)
        assert message.key is None
        assert message.commit_ts == COMMIT_TS
        assert dict(message.headers)["table"] == b"shop.orders"
        found.append(json.loads(message.value or b""))
    return found


def test_an_insert_has_ticdcs_fields_in_their_order() -> None:
    (found,) = sent(TICDC, batch_of(INSERT, new=ROW))
    assert list(found.items()) == [
        ("id", 0),
        ("database", "shop"),
        ("table", "orders"),
        ("pkNames", ["id"]),
        ("isDdl", False),
        ("type", "INSERT"),
        ("es", PHYSICAL_MS),
        ("ts", BUILT_MS),
        ("sql", ""),
        ("sqlType", {"id": -5, "note": 12, "price": 3, "st": 4, "raw": 2004, "at": 93}),
        (
            "mysqlType",
            {
                "id": "bigint unsigned",
                "note": "varchar",
                "price": "decimal",
                "st": "enum",
                "raw": "varbinary",
                "at": "timestamp",
            },
        ),
        ("old", None),
        (
            "data",
            [
                {
                    "id": "7",
                    "note": "café",
                    "price": "12.50",
                    "st": "2",
                    "raw": "\x89P\xff",
                    "at": "2024-05-25 05:09:29.500",
                }
            ],
        ),
        ("_tidb", {"commitTs": COMMIT_TS}),
    ]


def test_without_the_extension_only_its_field_is_missing() -> None:
    (plain,) = sent(
        MessageFormat("canal-json", AS_TICDC, tidb_extension=False), batch_of(INSERT, new=ROW)
    )
    (extended,) = sent(TICDC, batch_of(INSERT, new=ROW))
    del extended["_tidb"]
    assert plain == extended


def test_an_update_has_the_whole_old_row_or_the_changed_columns_alone() -> None:
    batch = batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00", "note": None})
    (found,) = sent(TICDC, batch)
    assert (found["type"], found["data"][0]["price"]) == ("UPDATE", "13.00")
    assert len(found["old"][0]) == 6
    assert found["old"][0]["price"] == "12.50"
    (found,) = sent(MessageFormat("canal-json", AS_TICDC, content_compatible=True), batch)
    assert found["old"] == [{"note": "café", "price": "12.50"}]
    assert found["mysqlType"]["price"] == "decimal(10,2)"
    assert found["mysqlType"]["st"] == "enum('new','paid','sent')"


def test_a_column_that_was_null_is_null_among_the_changed_ones() -> None:
    compatible = MessageFormat("canal-json", content_compatible=True)
    (found,) = sent(compatible, batch_of(UPDATE, old=ROW | {"note": None, "raw": None}, new=ROW))
    assert found["old"] == [{"note": None, "raw": None}]
    (found,) = sent(compatible, batch_of(UPDATE, old=ROW, new=ROW))
    assert found["old"] == [{}]


def test_a_delete_has_the_deleted_row_as_data() -> None:
    (found,) = sent(TICDC, batch_of(DELETE, old=ROW))
    assert (found["type"], found["old"], found["data"][0]["id"]) == ("DELETE", None, "7")


@pytest.mark.parametrize(
    ("tp", "value", "number"),
    [
        (types.BIGINT, 2**63 - 1, -5),
        (types.BIGINT, 2**63, 3),
        (types.TINYINT, 127, -6),
        (types.TINYINT, 128, 5),
        (types.SMALLINT, 32768, 4),
        (types.MEDIUMINT, 2**24 - 1, 4),
        (types.INT, 2**31 - 1, 4),
        (types.INT, 2**31, -5),
        (types.INT, None, 4),
    ],
)
def test_unsigned_numbers_promote_by_value(tp: int, value: int | None, number: int) -> None:
    table = Table(1, 1, "shop", "orders", (Column(1, "n", 0, tp, flag=types.FLAG_UNSIGNED),))
    (found,) = sent(TICDC, batch_of(INSERT, new={"n": value}, table=table))
    assert found["sqlType"] == {"n": number}
    assert found["data"] == [{"n": None if value is None else str(value)}]


@pytest.mark.parametrize(
    ("column", "value", "text", "number"),
    [
        (Column(1, "n", 0, types.FLOAT), 2.0, "2", 7),
        (Column(1, "n", 0, types.FLOAT), 0.1, "0.1", 7),
        (Column(1, "n", 0, types.DOUBLE), 1e20, "100000000000000000000", 8),
        (Column(1, "n", 0, types.DOUBLE), 1e-7, "0.0000001", 8),
        (Column(1, "n", 0, types.BIT, flen=3), 5, "5", -7),
        (Column(1, "n", 0, types.SET, elems=("a", "b", "c")), 5, "5", -7),
        (Column(1, "n", 0, types.YEAR, flen=4), 2024, "2024", 12),
        (Column(1, "n", 0, types.TIME, decimal=1), "-01:02:03.5", "-01:02:03.5", 92),
        (Column(1, "n", 0, types.TEXT, charset="binary"),
         b"", "", 2004),
        (Column(1, "n", 0, types.JSON), '{"a": "\\u0001"}', '{"a": "\\u0001"}', 12),
    ],
)  # fmt: skip
def test_values_are_the_texts_of_the_protocol(
    column: Column, value: Any, text: str, number: int
) -> None:
    table = Table(1, 1, "shop", "orders", (column,))
    (found,) = sent(TICDC, batch_of(INSERT, new={"n": value}, table=table))
    assert (found["data"], found["sqlType"]) == ([{"n": text}], {"n": number})


def test_bytes_that_are_no_text_are_reversible_unless_ticdcs_are_wanted() -> None:
    raw = b"caf\xe9 \xe2\x82"
    (lossless,) = sent(MessageFormat("canal-json"), batch_of(INSERT, new=ROW | {"note": raw}))
    assert lossless["data"][0]["note"].encode("utf-8", "surrogateescape") == raw
    (lossy,) = sent(TICDC, batch_of(INSERT, new=ROW | {"note": raw}))
    assert lossy["data"][0]["note"] == "caf\ufffd \ufffd\ufffd"


def test_the_zone_is_named_and_types_have_their_parameters_without_loss() -> None:
    (found,) = sent(MessageFormat("canal-json", time_zone="+08:00"), batch_of(INSERT, new=ROW))
    assert found["_tidb"] == {"commitTs": COMMIT_TS, "tz": "+08:00"}
    assert found["mysqlType"] == {
        "id": "bigint(20) unsigned",
        "note": "varchar(20)",
        "price": "decimal(10,2)",
        "st": "enum('new','paid','sent')",
        "raw": "varbinary(8)",
        "at": "timestamp(3)",
    }


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (Action.ADD_COLUMN, "ALTER"),
        (Action.DROP_TABLE, "ERASE"),
        (Action.ADD_INDEX, "CINDEX"),
        (Action.CREATE_SCHEMA, "QUERY"),
        (Action.CREATE_TABLE, "CREATE"),
        (Action.TRUNCATE_TABLE, "TRUNCATE"),
        (Action.DROP_INDEX, "DINDEX"),
        (Action.RENAME_TABLE, "RENAME"),
        (999, "QUERY"),
    ],
)
def test_a_ddl_statement_has_canals_type(action: int, name: str) -> None:
    job = DdlJob(
        COMMIT_TS, 3, type=action, query="say 'é'", schema_name="shop", table_name="orders"
    )
    (message,) = encoder_for(TICDC).ddl(job, BUILT_MS)
    assert json.loads(message.value or b"") == {
        "id": 0,
        "database": "shop",
        "table": "orders",
        "pkNames": None,
        "isDdl": True,
        "type": name,
        "es": PHYSICAL_MS,
        "ts": BUILT_MS,
        "sql": "say 'é'",
        "sqlType": None,
        "mysqlType": None,
        "data": None,
        "old": None,
        "_tidb": {"commitTs": COMMIT_TS},
    }
    assert dict(message.headers) == {
        "commit_ts": str(COMMIT_TS).encode(),
        "start_ts": b"3",
        "table": b"shop.orders",
    }


def test_a_watermark_is_sent_with_the_extension_alone() -> None:
    (message,) = encoder_for(TICDC).watermark(COMMIT_TS, BUILT_MS)
    found = json.loads(message.value or b"")
    assert (found["type"], found["es"], found["data"]) == ("TIDB_WATERMARK", PHYSICAL_MS, None)
    assert found["_tidb"] == {"watermarkTs": COMMIT_TS}
    reader = CanalReader()
    assert reader.read(message) is None
    assert reader.watermark == COMMIT_TS
    plain = MessageFormat("canal-json", tidb_extension=False)
    assert encoder_for(plain).watermark(COMMIT_TS, BUILT_MS) == []
