"""Encode changes as Avro with Confluent's wire format: TiCDC's schemas, and more if lossless.

    key      0, schema id u32 | record of the handle key
    value    0, schema id u32 | record of the new row, _tidb_op, _tidb_commit_ts, …

The number of a schema is that of `Avro.schemas`; the sink, which asks the registry, puts the
registry's id there (`resolved`). As TiCDC, a delete is a tombstone. Lossless, it is a record of the
deleted row with `_tidb_op` d in front of the tombstone, and `_ticdc_before` is the row before.
DDL and watermarks have no messages: a reader learns a new schema by its id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages.avro_binary import longs, record, sized_text
from sluice.etl.changes.messages.avro_schemas import (
    NULL,
    PRESENT,
    Field,
    avro_name,
    fields_of,
    record_schema,
)
from sluice.etl.changes.messages.key_changes import KeyedEncoder
from sluice.etl.changes.messages.message import Images, Message, RowBatch, handle_key, shown_columns
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.etl.changes.steps import ChangeError, MessageSchema
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import tso
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

KEY, VALUE = "key", "value"
_HEAD = struct.Struct(">BI")
_MAGIC = 0
HEAD_BYTES = _HEAD.size
_OPS = {INSERT: sized_text("c"), UPDATE: sized_text("u"), DELETE: sized_text("d")}
_READ = sized_text("r")
"""The `_tidb_op` of a row of a snapshot, lossless; TiCDC has no snapshots."""
_EXTENSION = (
    {"name": "_tidb_op", "type": "string", "default": ""},
    {"name": "_tidb_commit_ts", "type": "long", "default": 0},
    {"name": "_tidb_commit_physical_time", "type": "long", "default": 0},
)


class SchemaNumbers:
    """Number the schemas of an encoder's messages."""

    def __init__(self) -> None:
        self.schemas: list[MessageSchema] = []
        """Each schema at its number."""
        self._numbers: dict[MessageSchema, int] = {}

    def head(self, schema: MessageSchema) -> bytes:
        """Return what stands in front of a record: the magic and the schema's number."""
        number = self._numbers.setdefault(schema, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        return _HEAD.pack(_MAGIC, number)


class Avro(KeyedEncoder):
    """Encode one pipeline's changes as Avro."""

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self.time_zone = options.time_zone
        self._lossless = self.tombstones = options.is_lossless
        self._extension = options.tidb_extension or options.is_lossless
        self._numbers = SchemaNumbers()

    @property
    def schemas(self) -> list[MessageSchema]:
        """Return the schemas of all messages so far, by their numbers."""
        return self._numbers.schemas

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return nothing: a reader learns a new schema by its id."""
        return []

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return nothing: Avro has no watermarks."""
        return []

    def table_schemas(self, table: Table) -> list[MessageSchema]:
        """Return the schemas that messages of a table have."""
        columns = shown_columns(table)
        key = [column for column in columns if column.name in handle_key(table)]
        found = [self._value_schema(table, self._fields(columns))]
        return [self._key_schema(table, self._fields(key)), *found] if key else found

    def _keys(
        self, batch: RowBatch, key: Sequence[Column], image: Images
    ) -> pa.LargeBinaryArray | None:
        if not key:
            return None
        fields = self._fields(key)
        head = self._numbers.head(self._key_schema(batch.table, fields))
        values = [field.values(image) for field in fields]
        return record([head, *values], len(batch))

    def _values(self, batch: RowBatch) -> pa.LargeBinaryArray | None:
        if batch.kind == DELETE and not self._lossless:
            if not handle_key(batch.table):
                raise ChangeError(
                    f"table {batch.table.full_name!r} has no key, and a row was deleted at"
                    f" commit_ts {batch.commit_ts[0]}: no message of TiCDC's Avro names the row",
                    hint="set [kafka] fidelity = 'lossless', or filter the table out",
                )
            return None
        fields = self._fields(batch.columns)
        parts: list[pa.LargeBinaryArray | bytes] = [
            self._numbers.head(self._value_schema(batch.table, fields)),
            *(field.values(batch.present) for field in fields),
        ]
        if self._extension:
            parts += [
                _READ if batch.snapshot and self._lossless else _OPS[batch.kind],
                longs(pa.array(batch.commit_ts)),
                longs(pa.array(batch.commit_ts >> tso.LOGICAL_BITS)),
            ]
        if self._lossless:
            if batch.kind == INSERT:
                parts.append(NULL)
            else:
                before = (field.values(batch.old) for field in fields)
                parts += [PRESENT, *before]
        return record(parts, len(batch))

    def _fields(self, columns: Sequence[Column]) -> list[Field]:
        return fields_of(columns, lossless=self._lossless, time_zone=self.time_zone)

    def _key_schema(self, table: Table, fields: Sequence[Field]) -> MessageSchema:
        document = record_schema(table, [field.schema() for field in fields])
        return message_schema(KEY, document)

    def _value_schema(self, table: Table, fields: Sequence[Field]) -> MessageSchema:
        listed = [field.schema() for field in fields]
        if self._extension:
            listed += _EXTENSION
        if self._lossless:
            row = [field.schema() for field in fields]
            before = record_schema(table, row, f"{avro_name(table.name)}_before")
            listed.append({"name": "_ticdc_before", "type": ["null", before], "default": None})
        return message_schema(VALUE, record_schema(table, listed))


def message_schema(part: str, document: dict[str, Any]) -> MessageSchema:
    """Return the schema of the keys or values of messages."""
    name = f"{document['namespace']}.{document['name']}"
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return MessageSchema(name, part, text)


def resolved(message: Message, head_of: Callable[[bytes], bytes]) -> Message:
    """Return a message with the registry's ids in place of its schemas' numbers.

    `head_of` has what `head_with_id` makes of the first HEAD_BYTES of a key or value.
    """
    commit_ts, key, value, headers = message
    if key is not None:
        key = head_of(key[:HEAD_BYTES]) + key[HEAD_BYTES:]
    if value is not None:
        value = head_of(value[:HEAD_BYTES]) + value[HEAD_BYTES:]
    return Message(commit_ts, key, value, headers)


def head_with_id(
    head: bytes, schemas: Sequence[MessageSchema], id_of: Callable[[MessageSchema], int]
) -> bytes:
    """Return what stands in front of a record, with the id of the schema that has the number."""
    _, number = _HEAD.unpack(head)
    return _HEAD.pack(_MAGIC, id_of(schemas[number]))
