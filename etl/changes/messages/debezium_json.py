"""Encode changes as Debezium's connector for MySQL does, as JSON with or without schemas.

The key is the row's handle key, null in a table without one. Values are those of
`sluice.etl.changes.messages.debezium_types`. Lossless:

- without schemas the envelope is the whole value, as Kafka Connect's JSON converter writes it;
- a tombstone follows a delete, and a change of the key is a delete, a tombstone and a create, whose
  headers name the other key;
- the schema of `source` lists the commit ts and the start ts;
- TRUNCATE TABLE is a message with op `t`, besides that of its DDL.

As TiCDC, the envelope is always in `payload`, there are no tombstones and no op `t`. NULL stays
NULL in both, also beside a default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages.debezium_ddl import changes_schema, table_changes
from sluice.etl.changes.messages.debezium_types import json_values, row_schema
from sluice.etl.changes.messages.json_text import NULL, json_string, objects, row_texts
from sluice.etl.changes.messages.key_changes import KeyedEncoder
from sluice.etl.changes.messages.message import (
    Images,
    Message,
    MessageFormat,
    RowBatch,
    ddl_headers,
    digits,
    watermark_headers,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

Parts = list[pa.LargeBinaryArray | bytes]
"""What is joined row by row, or, if all are bytes, into one text."""

_NAME = "default"
"""The connector's name in `source` and in the schemas, as TiCDC has it."""
_TICDC_VERSION = "2.4.0.Final"
"""The version of Debezium that TiCDC names."""
_VERSION = "1"
_OPS = {INSERT: b"c", UPDATE: b"u", DELETE: b"d"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_SOURCE = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("table", "string", True),
    ("server_id", "int64", False),
    ("gtid", "string", True),
    ("file", "string", False),
    ("pos", "int64", False),
    ("row", "int32", False),
    ("thread", "int64", True),
    ("query", "string", True),
)
"""Fields of `source` with their types, and whether they are optional."""
_SOURCE_BEYOND = (
    ("commit_ts", "int64", False),
    ("start_ts", "int64", False),
    ("cluster_id", "string", False),
)
"""Fields that TiCDC has in its values, but not in its schema."""
_DDL_FIELDS = (
    ("ts_ms", "int64", False),
    ("databaseName", "string", True),
    ("schemaName", "string", True),
    ("ddl", "string", True),
)
_TRANSACTION = (
    ("id", "string", False),
    ("total_order", "int64", False),
    ("data_collection_order", "int64", False),
)


class DebeziumJson(KeyedEncoder):
    """Encode one pipeline's changes as Debezium's JSON."""

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self._lossless = self.tombstones = self.key_headers = options.is_lossless
        self._with_schema = options.with_schema
        self._extension = options.tidb_extension

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return the message of a DDL statement; lossless, another one of TRUNCATE TABLE."""
        source = self._source(job.schema_name, job.table_name, job.commit_ts, job.start_ts)
        database = json_string(job.schema_name)
        value: Parts = [
            b'{"source":',
            *source,
            b',"ts_ms":%d,"databaseName":%b,"schemaName":null,"ddl":' % (built_ms, database),
            json_string(job.query, lossless=self._lossless),
            b',"tableChanges":%b}' % json.dumps(table_changes(job)).encode(),
        ]
        found = [
            Message(
                job.commit_ts,
                self._whole([b'{"databaseName":%b}' % database], _DDL_KEY_SCHEMA),
                self._whole(value, self._ddl_schema()),
                ddl_headers(job),
            )
        ]
        if self._lossless and job.type == Action.TRUNCATE_TABLE:
            columns = next((t.columns for t in job.effect.tables.values() if t is not None), ())
            table = Table(0, 0, job.schema_name, job.table_name, columns)
            schema = self._schema(table, [c for c in table.stored_columns if not c.hidden])
            truncated = self._whole(_envelope(source, built_ms, b"t", NULL, NULL), schema)
            found.append(Message(job.commit_ts, None, truncated, ddl_headers(job)))
        return found

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the watermark, an envelope with op `m`, which only the extension has."""
        if not self._extension:
            return []
        table = Table(0, 0, "", "watermark")
        source = self._source("", "", commit_ts, commit_ts)
        envelope = _envelope(source, built_ms, b"m", NULL, NULL)
        key = self._whole([b"{}"], _struct(_schema_name(table, "Key"), []))
        value = self._whole(envelope, self._schema(table, []))
        return [Message(commit_ts, key, value, watermark_headers(commit_ts))]

    def _keys(
        self, batch: RowBatch, key: Sequence[Column], image: Images
    ) -> pa.LargeBinaryArray | None:
        if not key:
            return None
        name = _schema_name(batch.table, "Key")
        schema = row_schema(key, name, optional=False, lossless=self._lossless)
        row = self._row(key, image, len(batch))
        return row_texts(*self._around([row], schema), count=len(batch))

    def _values(self, batch: RowBatch) -> pa.LargeBinaryArray:
        table, columns, count = batch.table, batch.columns, len(batch)
        before, after = (
            self._row(columns, image, count) if image else NULL for image in (batch.old, batch.new)
        )
        source = self._source(
            table.schema_name, table.name, digits(batch.commit_ts), digits(batch.start_ts),
            digits(batch.commit_ts >> tso.LOGICAL_BITS),
        )  # fmt: skip
        envelope = _envelope(source, batch.built_ms, _OPS[batch.kind], before, after)
        return row_texts(*self._around(envelope, self._schema(table, columns)), count=count)

    def _row(self, columns: Sequence[Column], image: Images, count: int) -> pa.LargeBinaryArray:
        return objects(
            [(c.name, json_values(c, image[c.name], lossless=self._lossless)) for c in columns],
            count,
        )

    def _source(
        self,
        schema: str,
        table: str,
        commit_ts: pa.LargeBinaryArray | int,
        start_ts: pa.LargeBinaryArray | int,
        moment_ms: pa.LargeBinaryArray | None = None,
    ) -> Parts:
        """Return the block `source`, of one message or of an array."""
        version, connector = (_VERSION, "sluice") if self._lossless else (_TICDC_VERSION, "TiCDC")
        head = {"version": version, "connector": connector, "name": _NAME}
        database, name = json_string(schema), json_string(table)
        if moment_ms is None:
            moment_ms = b"%d" % tso.physical_ms(commit_ts)
        return [
            json.dumps(head, separators=(",", ":")).encode()[:-1],
            b',"ts_ms":',
            moment_ms,
            b',"snapshot":"false","db":%b,"table":%b,"server_id":0,"gtid":null,"file":"","pos":0'
            b',"row":0,"thread":0,"query":null,"commit_ts":' % (database, name),
            b"%d" % commit_ts if isinstance(commit_ts, int) else commit_ts,
            *(
                (b',"start_ts":', b"%d" % start_ts if isinstance(start_ts, int) else start_ts)
                if self._lossless
                else ()
            ),
            b',"cluster_id":"default"}',
        ]

    def _around(self, parts: Parts, schema: dict[str, Any]) -> Parts:
        """Return the parts of a value or key in what the JSON converter puts around it."""
        if self._with_schema:
            return [b'{"payload":', *parts, b',"schema":', json.dumps(schema).encode(), b"}"]
        return parts if self._lossless else [b'{"payload":', *parts, b"}"]

    def _whole(self, parts: Parts, schema: dict[str, Any]) -> bytes:
        return b"".join(part for part in self._around(parts, schema) if isinstance(part, bytes))

    def _schema(self, table: Table, columns: Sequence[Column]) -> dict[str, Any]:
        """Return the schema of an envelope."""
        row = row_schema(
            columns, _schema_name(table, "Value"), optional=True, lossless=self._lossless
        )
        transaction = _struct("event.block", _fields(_TRANSACTION), optional=True)
        return _struct(
            _schema_name(table, "Envelope"),
            [
                row | {"field": "before"},
                row | {"field": "after"},
                self._source_schema(),
                *_fields((("op", "string", False), ("ts_ms", "int64", True))),
                transaction | {"version": 1, "field": "transaction"},
            ],
        ) | {"version": 1}

    def _source_schema(self) -> dict[str, Any]:
        listed = _SOURCE + _SOURCE_BEYOND if self._lossless else _SOURCE
        found = _struct("io.debezium.connector.mysql.Source", _fields(listed))
        return found | {"field": "source"}

    def _ddl_schema(self) -> dict[str, Any]:
        return _struct(
            "io.debezium.connector.mysql.SchemaChangeValue",
            [
                self._source_schema(),
                *_fields(_DDL_FIELDS),
                changes_schema(),
            ],
        )


def _envelope(
    source: Parts,
    built_ms: int,
    op: bytes,
    before: pa.LargeBinaryArray | bytes,
    after: pa.LargeBinaryArray | bytes,
) -> Parts:
    head = b',"ts_ms":%d,"transaction":null,"op":"%b","before":' % (built_ms, op)
    return [b'{"source":', *source, head, before, b',"after":', after, b"}"]


def _schema_name(table: Table, part: str) -> str:
    names = (_NO_NAME.sub("_", name) for name in (_NAME, table.schema_name, table.name))
    return ".".join([*names, part])


def _struct(name: str, fields: list[dict[str, Any]], *, optional: bool = False) -> dict[str, Any]:
    return {"type": "struct", "optional": optional, "name": name, "fields": fields}


def _fields(listed: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in listed]


_DDL_KEY_SCHEMA = _struct(
    "io.debezium.connector.mysql.SchemaChangeKey", _fields((("databaseName", "string", False),))
)
