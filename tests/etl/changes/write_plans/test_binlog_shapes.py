"""What goes to files and Kafka holds the values of every change, for every type, key and schema
change in the recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.etl.changes.formats.binlog_file import commit_ts_of, split_records
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans import file_binlog, kafka_binlog
from sluice.etl.changes.write_plans._transactions import transaction_steps
from sluice.relay import RelayLog
from sluice.tidb import pb
from sluice.tidb.codec.datum import decode_datum
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column
from tests.etl.changes.singly_decoded import decoded_singly
from tests.etl.relay_from_recording import RECORDINGS, committed, land

INSERT, UPDATE, DELETE = 0, 1, 2


@pytest.fixture(scope="module", params=["types", "ddl"])
def relay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(RECORDINGS / request.param, f"file://{tmp_path_factory.mktemp(request.param)}", 500)


def windows(relay: RelayLog) -> BatchPayload:
    return BatchPayload.from_windows(relay.windows(0))


def messages_of(steps: Iterator[Step]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    waiting = b""
    for step in steps:
        if step.kind != "transaction":
            continue
        waiting += step.payload
        if not step.detail.more:
            for _, message in split_records(memoryview(waiting)):
                commit_ts = commit_ts_of(message)
                assert commit_ts > max(found, default=0)
                found[commit_ts] = bytes(message)
            waiting = b""
    return found


def number(column: Column, value: Any) -> Any:
    if column.kind == "enum":
        return column.elems.index(value) + 1 if value else 0
    if column.kind == "set":
        return sum(1 << column.elems.index(name) for name in value.split(",") if name)
    return value


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def from_file(column: Column, datum: bytes, expected: Any) -> None:
    (flag, value), end = decode_datum(datum)
    assert end == len(datum)
    if expected is None:
        assert flag == 0
    elif column.kind in ("int", "year", "bit", "enum", "set"):
        assert flag == (
            9
            if column.kind in ("bit", "enum", "set") or (column.unsigned and column.kind == "int")
            else 8
        )
        assert value == number(column, expected)
    elif column.kind in ("float", "double"):
        assert (flag, value) == (5, expected)
    else:
        assert (flag, value) == (2, as_bytes(expected))


def test_a_file_has_every_change_with_its_values(
    relay: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decoded_singly(relay, monkeypatch)
    found = messages_of(prepare_steps(relay.url, windows(relay), PrepareOptions("file_binlog")))
    assert found.keys() == expected.keys()
    kinds = set()
    for commit_ts, changes in expected.items():
        events = pb.file_binlog.Binlog.FromString(found[commit_ts]).dml_data.events
        assert len(events) == len(changes)
        for event, (table, kind, old, new) in zip(events, changes, strict=True):
            assert (event.schema_name, event.table_name, event.tp) == (
                table.schema_name,
                table.name,
                kind,
            )
            by_name = {column.name: column for column in table.columns}
            columns = [pb.file_binlog.Column.FromString(column) for column in event.row]
            written = [
                c.name
                for c in (table.columns if kind == DELETE else table.writable_columns)
                if c.public
            ]
            stored = {c.name for c in table.stored_columns}
            assert [c.name for c in columns if c.name in stored or kind != DELETE] == [
                name for name in written if name in stored
            ]
            for column in columns:
                info = by_name[column.name]
                kinds.add(info.kind)
                assert column.tp == bytes((info.tp,))
                if column.name not in stored:  # a virtual column, which only a delete has
                    assert kind == DELETE
                    continue
                from_file(info, column.value, (new if kind == INSERT else old)[column.name])  # type: ignore[index]
                assert column.HasField("changed_value") == (kind == UPDATE)
                if new is not None and kind == UPDATE:
                    from_file(info, column.changed_value, new[column.name])
    assert kinds >= {"int", "text", "decimal"}


def from_kafka(column: Column, value: Any, expected: Any) -> None:
    (field,) = [descriptor.name for descriptor, _ in value.ListFields()]
    if expected is None:
        assert field == "is_null"
        return
    wanted = {
        "bit": "bytes_value",
        "year": "string_value",
        "enum": "uint64_value",
        "set": "uint64_value",
        "json": "bytes_value",
        "binary": "bytes_value",
    }
    if column.kind == "int":
        assert (field, getattr(value, field)) == (
            "uint64_value" if column.unsigned else "int64_value",
            expected,
        )
    elif column.kind in ("float", "double"):
        assert (field, value.double_value) == ("double_value", expected)
    elif column.kind == "bit":
        assert (field, value.bytes_value) == (
            "bytes_value",
            expected.to_bytes((column.flen + 7) // 8, "big"),
        )
    elif column.kind == "year":
        assert (field, value.string_value) == ("string_value", f"{expected:04}")
    else:
        assert field == wanted.get(column.kind, "string_value")
        assert (
            getattr(value, field)
            if isinstance(number(column, expected), int)
            else as_bytes(getattr(value, field))
        ) == (number(column, expected) if column.kind in ("enum", "set") else as_bytes(expected))


def test_a_kafka_message_has_every_change_with_its_values(
    relay: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decoded_singly(relay, monkeypatch)
    found = messages_of(prepare_steps(relay.url, windows(relay), PrepareOptions("kafka_binlog")))
    assert found.keys() == expected.keys()
    for commit_ts, changes in expected.items():
        mutations = [
            (table, mutation)
            for table in pb.secondary.Binlog.FromString(found[commit_ts]).dml_data.tables
            for mutation in table.mutations
        ]
        assert len(mutations) == len(changes)
        for (message, mutation), (table, kind, old, new) in zip(mutations, changes, strict=True):
            assert (message.schema_name, message.table_name, mutation.type) == (
                table.schema_name,
                table.name,
                kind,
            )
            shown = [column for column in table.columns if column.public and not column.hidden]
            assert [info.name for info in message.column_info] == [column.name for column in shown]
            assert mutation.HasField("change_row") == (kind == UPDATE)
            images = [(mutation.row, old if kind == DELETE else new)] + (
                [(mutation.change_row, old)] if kind == UPDATE else []
            )
            for row, image in images:
                assert len(row.columns) == len(shown)
                for column, value in zip(shown, row.columns, strict=True):
                    assert image is not None
                    if column.virtual:
                        assert kind == DELETE or value.is_null
                    else:
                        from_kafka(column, value, image[column.name])


def test_kafka_messages_name_columns_and_keys_as_the_original(tmp_path: Path) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}", 40, through=first_transactions(60))
    found = messages_of(prepare_steps(relay.url, windows(relay), PrepareOptions("kafka_binlog")))
    tables = {
        t.table_name: t
        for m in found.values()
        for t in pb.secondary.Binlog.FromString(m).dml_data.tables
    }
    account, cart = tables["account"], tables["cart"]
    assert [
        (c.name, c.mysql_type, c.is_primary_key, c.flen, c.decimal) for c in account.column_info
    ] == [
        ("id", "int", True, 11, 0),
        ("email", "varchar", False, 40, 0),
        ("balance", "decimal", False, 20, 4),
        ("ver", "int", False, 11, 0),
        ("updated", "timestamp", False, 23, 3),
    ]
    assert [(key.name, list(key.column_names)) for key in account.unique_keys] == [
        ("PRIMARY", ["id"]),
        ("email", ["email"]),
    ]
    assert [(key.name, list(key.column_names)) for key in cart.unique_keys] == [
        ("PRIMARY", ["uid", "sku"])
    ]


def first_transactions(count: int) -> int:
    return committed(RECORDINGS / "shop")[count][0]


def test_binary_types_have_their_own_names() -> None:
    def name(tp: int, charset: str) -> str:
        return file_binlog.type_name(Column(1, "c", 0, tp, charset=charset))

    assert [name(tp, "utf8mb4") for tp in (0xFC, 0xF9, 0xFE, 15)] == [
        "text",
        "tinytext",
        "char",
        "varchar",
    ]
    assert [name(tp, "binary") for tp in (0xFC, 0xF9, 0xFE, 15, 3)] == [
        "blob",
        "tinyblob",
        "binary",
        "varbinary",
        "int",
    ]


def test_timestamps_are_written_in_the_wanted_zone_and_datetimes_as_they_are(
    tmp_path: Path,
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}", 40, through=first_transactions(60))
    by_zone = {
        zone: messages_of(
            prepare_steps(relay.url, windows(relay), PrepareOptions("file_binlog", time_zone=zone))
        )
        for zone in ("UTC", "+08:00")
    }
    times: dict[str, list[tuple[str, bytes]]] = {zone: [] for zone in by_zone}
    for zone, found in by_zone.items():
        for message in found.values():
            for event in pb.file_binlog.Binlog.FromString(message).dml_data.events:
                columns = [pb.file_binlog.Column.FromString(column) for column in event.row]
                times[zone] += [
                    (c.mysql_type, c.value[2:])
                    for c in columns
                    if c.mysql_type in ("timestamp", "datetime")
                ]
    assert {kind for kind, _ in times["UTC"]} == {"timestamp", "datetime"}
    for (kind, utc), (_, shanghai) in zip(times["UTC"], times["+08:00"], strict=True):
        assert shanghai == (utc.replace(b" 09:", b" 17:") if kind == "timestamp" else utc)


def test_a_transaction_larger_than_a_step_comes_in_pieces() -> None:
    generator = np.random.default_rng(7)
    sizes = [10, 5000, 3, 1000, 999, 20, 2001, 1]
    dml = [generator.bytes(size) for size in sizes]
    steps = list(
        transaction_steps(
            ((100 + i, i + 1, [data[:7], data[7:]]) for i, data in enumerate(dml)), step_bytes=1000
        )
    )
    assert all(len(step.payload) <= 1000 + 40 for step in steps)
    assert any(step.detail.more for step in steps)
    record = bytearray()
    found = []
    for step in steps:
        record += step.payload
        if not step.detail.more:
            found += [bytes(message) for _, message in split_records(memoryview(bytes(record)))]
            assert commit_ts_of(found[-1]) == step.commit_ts
            record = bytearray()
    assert not record
    assert [message[-size:] for message, size in zip(found, sizes, strict=True)] == dml
    assert sum(step.rows for step in steps) == sum(range(1, len(sizes) + 1))


def test_ddl_is_written_with_its_database() -> None:
    ddl = DdlJob(
        470614791133593609,
        type=Action.CREATE_TABLE,
        schema_name="b`k",
        table_name="t",
        query="CREATE TABLE t (a INT)",
    )
    file = pb.file_binlog.Binlog.FromString(file_binlog.ddl_message(ddl))
    assert (file.tp, file.commit_ts, file.ddl_query) == (
        1,
        470614791133593609,
        b"use `b``k`; CREATE TABLE t (a INT);",
    )
    assert (
        pb.file_binlog.Binlog.FromString(
            file_binlog.ddl_message(replace(ddl, type=Action.CREATE_SCHEMA))
        ).ddl_query
        == b"CREATE TABLE t (a INT);"
    )
    kafka = pb.secondary.Binlog.FromString(kafka_binlog.ddl_message(ddl))
    assert (kafka.type, kafka.commit_ts) == (1, 470614791133593609)
    data = kafka.ddl_data
    assert (data.schema_name, data.table_name, data.ddl_query) == (
        "b`k",
        "t",
        b"CREATE TABLE t (a INT)",
    )
