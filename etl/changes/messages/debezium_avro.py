"""Encode changes as Debezium's connector for MySQL does with Confluent's converter for Avro.

The envelope and its values are those of `debezium_json`, lossless, but for DECIMAL, which is bytes
with the logical type decimal. All columns of rows are optional, as in TiCDC's debezium-avro: so
that a registry takes every column that is added or dropped. Schemas have numbers as in
`sluice.etl.changes.messages.avro`. TRUNCATE TABLE is a message with op `t`; other DDL and
watermarks have none, for their schemas don't fit under a table's subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages.avro import KEY, VALUE, SchemaNumbers, message_schema
from sluice.etl.changes.messages.avro_binary import (
    booleans,
    decimal_bytes,
    doubles,
    long_text,
    longs,
    optional,
    record,
    sized,
    sized_text,
)
from sluice.etl.changes.messages.avro_schemas import (
    NULL,
    PRESENT,
    avro_name,
    field_names,
    precision_of,
    scale_of,
)
from sluice.etl.changes.messages.debezium_ddl import truncated_table
from sluice.etl.changes.messages.debezium_schemas import (
    NAME,
    envelope_schema,
    field_schema,
    schema_name,
)
from sluice.etl.changes.messages.debezium_types import connect_values
from sluice.etl.changes.messages.key_changes import KeyedEncoder
from sluice.etl.changes.messages.message import (
    Images,
    Message,
    RowBatch,
    TransactionPlace,
    ddl_headers,
    handle_key,
    shown_columns,
    ungiven,
)
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.etl.changes.steps import MessageSchema
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

_OPS = {INSERT: sized_text("c"), UPDATE: sized_text("u"), DELETE: sized_text("d")}
_TRUNCATE, _READ = sized_text("t"), sized_text("r")
_TYPES = {
    "int16": {"type": "int", "connect.type": "int16"},
    "int32": {"type": "int"},
    "int64": {"type": "long"},
}
"""Avro's types of Kafka Connect's; the others have the same name."""


class DebeziumAvro(KeyedEncoder):
    """Encode one pipeline's changes as Debezium's Avro."""

    def __init__(self, options: MessageFormat) -> None:
        """Take the options; it has no choices."""
        self._numbers = SchemaNumbers()

    @property
    def schemas(self) -> list[MessageSchema]:
        """Return the schemas of all messages so far, by their numbers."""
        return self._numbers.schemas

    def table_schemas(self, table: Table) -> list[MessageSchema]:
        """Return the schemas that messages of a table have."""
        columns = shown_columns(table)
        key = [column for column in columns if column.name in handle_key(table)]
        found = [_value_schema(table, columns)]
        return [_key_schema(table, key), *found] if key else found

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return nothing: a statement's schema doesn't fit under a table's subject."""
        return []

    def truncation(self, job: DdlJob, built_ms: int) -> Message | None:
        """Return the message with op `t` of TRUNCATE TABLE."""
        if job.type != Action.TRUNCATE_TABLE:
            return None
        table = truncated_table(job)
        times = (job.commit_ts, job.start_ts, tso.physical_ms(job.commit_ts))
        head = self._numbers.head(_value_schema(table, shown_columns(table)))
        source = _source(table, *map(long_text, times))
        value = record([head, NULL, NULL, *source, _TRUNCATE, *_end(built_ms)], 1)
        return Message(job.commit_ts, None, bytes(value), ddl_headers(job))

    def in_transaction(self, message: Message, place: TransactionPlace) -> Message:
        """Return a row's message with the block `transaction`, which is the envelope's last."""
        if message.value is None:
            return message
        block = PRESENT + sized_text(str(message.commit_ts)) + b"".join(map(long_text, place))
        return message._replace(value=message.value[: -len(NULL)] + block)

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return nothing: a watermark is of no table, and so of no subject of one."""
        return []

    def _keys(
        self, batch: RowBatch, key: Sequence[Column], image: Images
    ) -> pa.LargeBinaryArray | None:
        if not key:
            return None
        head = self._numbers.head(_key_schema(batch.table, key))
        values = [_binary(column, image[column.name]) for column in key]
        for column, array in zip(key, values, strict=True):
            if array.null_count:
                raise ungiven(column)
        return record([head, *values], len(batch))

    def _values(self, batch: RowBatch) -> pa.LargeBinaryArray:
        columns = batch.columns
        parts: list[pa.LargeBinaryArray | bytes] = [
            self._numbers.head(_value_schema(batch.table, columns))
        ]
        for image in (batch.old, batch.new):
            if not image:
                parts.append(NULL)
                continue
            rows = (optional(_binary(_nullable(c), image[c.name])) for c in columns)
            parts += [PRESENT, *rows]
        times = (batch.commit_ts, batch.start_ts, batch.commit_ts >> tso.LOGICAL_BITS)
        moments = (longs(pa.array(each)) for each in times)
        parts += _source(batch.table, *moments, snapshot=batch.snapshot)
        op = _READ if batch.snapshot else _OPS[batch.kind]
        return record([*parts, op, *_end(batch.built_ms)], len(batch))


def _source(
    table: Table,
    commit_ts: pa.LargeBinaryArray | bytes,
    start_ts: pa.LargeBinaryArray | bytes,
    moment_ms: pa.LargeBinaryArray | bytes,
    *,
    snapshot: bool = False,
) -> list[pa.LargeBinaryArray | bytes]:
    """Return the block `source` in the order of its schema."""
    zero, empty = long_text(0), sized_text("")
    return [
        *map(sized_text, ("1", "sluice", NAME)),
        moment_ms,
        PRESENT + sized_text("true" if snapshot else "false"),
        sized_text(table.schema_name),
        PRESENT + sized_text(table.name),
        zero + NULL + empty + zero + zero + PRESENT + zero + NULL,  # server_id to query
        commit_ts,
        start_ts,
        sized_text(NAME),
    ]


def _end(built_ms: int) -> tuple[bytes, bytes]:
    """Return ts_ms and the transaction, which is null."""
    return PRESENT + long_text(built_ms), NULL


def _key_schema(table: Table, key: Sequence[Column]) -> MessageSchema:
    fields = _columns(key, is_optional=False)
    name = schema_name(table, "Key")
    connect = {"type": "struct", "name": name, "fields": fields, "optional": False}
    return message_schema(KEY, _avro(connect, set()))


def _value_schema(table: Table, columns: Sequence[Column]) -> MessageSchema:
    connect = envelope_schema(table, (), lossless=True)
    for row in connect["fields"][:2]:
        row["fields"] = _columns(columns, is_optional=True)
    return message_schema(VALUE, _avro(connect, set()))


def _columns(columns: Sequence[Column], *, is_optional: bool) -> list[dict[str, Any]]:
    """Return the columns' schemas in Kafka Connect, with names as Avro has them."""
    found = []
    for name, column in zip(field_names(columns), columns, strict=True):
        field = field_schema(column, lossless=True) | {"field": name, "optional": is_optional}
        if column.kind == "decimal":
            scale, precision = scale_of(column), precision_of(column)
            field |= {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "version": 1,
                "parameters": {"scale": str(scale), "connect.decimal.precision": str(precision)},
                "avro": {"logicalType": "decimal", "precision": precision, "scale": scale},
            }
        if name != column.name:
            field["parameters"] = {**field.get("parameters", {}), "column": column.name}
        found.append(field)
    return found


def _avro(connect: Mapping[str, Any], named: set[str]) -> Any:
    """Return the Avro schema of one of Kafka Connect; a record that was there before is a name."""
    kind = connect["type"]
    if kind == "struct":
        namespace, _, name = connect["name"].rpartition(".")
        if connect["name"] in named:
            return connect["name"]
        named.add(connect["name"])
        found: dict[str, Any] = {
            "type": "record",
            "name": avro_name(name),
            "namespace": namespace,
            "fields": [_field(field, named) for field in connect["fields"]],
        }
    else:
        found = dict(_TYPES.get(kind, {"type": kind}))
    if "version" in connect:
        found["connect.version"] = connect["version"]
    if "parameters" in connect:
        found["connect.parameters"] = connect["parameters"]
    if "name" in connect:
        found["connect.name"] = connect["name"]
    return found | connect.get("avro", {})


def _field(connect: Mapping[str, Any], named: set[str]) -> dict[str, Any]:
    found = _avro(connect, named)
    if isinstance(found, dict) and found.keys() == {"type"}:
        found = found["type"]
    if connect["optional"]:
        return {"name": connect["field"], "type": ["null", found], "default": None}
    return {"name": connect["field"], "type": found}


def _nullable(column: Column) -> Column:
    """Return a column whose dates that don't exist are null, as there is room for it."""
    return replace(column, flag=column.flag & ~types.FLAG_NOT_NULL)


def _binary(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    if column.kind == "decimal":
        return sized(decimal_bytes(array, precision_of(column), scale_of(column)))
    found = connect_values(column, array, lossless=True)
    if pa.types.is_integer(found.type):
        return longs(found)
    if pa.types.is_floating(found.type):
        return doubles(found)
    if pa.types.is_boolean(found.type):
        return booleans(found)
    return sized(found)
