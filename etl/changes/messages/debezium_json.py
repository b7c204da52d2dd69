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
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages.debezium_ddl import table_changes, truncated_table
from sluice.etl.changes.messages.debezium_schemas import (
    DDL_KEY_SCHEMA,
    NAME,
    ddl_schema,
    envelope_schema,
    row_schema,
    schema_name,
    struct,
)
from sluice.etl.changes.messages.debezium_types import json_values
from sluice.etl.changes.messages.json_text import (
    NULL,
    json_string,
    objects,
    row_texts,
    text_strings,
)
from sluice.etl.changes.messages.key_changes import KeyedEncoder
from sluice.etl.changes.messages.message import (
    Images,
    Message,
    RowBatch,
    TransactionPlace,
    ddl_headers,
    digits,
    shown_columns,
    watermark_headers,
)
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

Parts = list[pa.LargeBinaryArray | bytes]
"""What is joined row by row, or, if all are bytes, into one text."""

_TICDC_VERSION = "2.4.0.Final"
"""The version of Debezium that TiCDC names."""
_VERSION = "1"
_OPS = {INSERT: b"c", UPDATE: b"u", DELETE: b"d"}
_READ = b"r"
"""The op of a row of a snapshot."""
_NO_TRANSACTION = b',"transaction":null,"op":'
"""Nothing of a table's is in front of it but names in JSON strings, which have no bare quotes."""


class DebeziumJson(KeyedEncoder):
    """Encode one pipeline's changes as Debezium's JSON."""

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self._lossless = self.tombstones = self.key_headers = options.is_lossless
        self._with_schema = options.with_schema
        self._extension = options.tidb_extension

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return the message of a DDL statement."""
        source = self._source((job.schema_name, job.table_name), job.commit_ts, job.start_ts)
        database = json_string(job.schema_name)
        value: Parts = [
            b'{"source":',
            *source,
            b',"ts_ms":%d,"databaseName":%b,"schemaName":null,"ddl":' % (built_ms, database),
            json_string(job.query, lossless=self._lossless),
            b',"tableChanges":%b}' % json.dumps(table_changes(job)).encode(),
        ]
        key = self._whole([b'{"databaseName":%b}' % database], DDL_KEY_SCHEMA)
        whole = self._whole(value, ddl_schema(lossless=self._lossless))
        return [Message(job.commit_ts, key, whole, ddl_headers(job))]

    def truncation(self, job: DdlJob, built_ms: int) -> Message | None:
        """Return the message with op `t` of TRUNCATE TABLE; as TiCDC there is none."""
        if not self._lossless or job.type != Action.TRUNCATE_TABLE:
            return None
        table = truncated_table(job)
        source = self._source((table.schema_name, table.name), job.commit_ts, job.start_ts)
        schema = envelope_schema(table, shown_columns(table), lossless=self._lossless)
        value = self._whole(_envelope(source, built_ms, b"t", NULL, NULL), schema)
        return Message(job.commit_ts, None, value, ddl_headers(job))

    def in_transaction(self, message: Message, place: TransactionPlace) -> Message:
        """Return a row's message with the block `transaction`; as TiCDC it is null."""
        if not self._lossless or message.value is None:
            return message
        block = b',"transaction":{"id":"%d","total_order":%d,"data_collection_order":%d},"op":'
        named = block % (message.commit_ts, *place)
        return message._replace(value=message.value.replace(_NO_TRANSACTION, named, 1))

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the watermark, an envelope with op `m`, which only the extension has."""
        if not self._extension:
            return []
        table = Table(0, 0, "", "watermark")
        source = self._source(("", ""), commit_ts, commit_ts)
        envelope = _envelope(source, built_ms, b"m", NULL, NULL)
        key = self._whole([b"{}"], struct(schema_name(table, "Key"), []))
        value = self._whole(envelope, envelope_schema(table, [], lossless=self._lossless))
        return [Message(commit_ts, key, value, watermark_headers(commit_ts))]

    def _keys(
        self, batch: RowBatch, key: Sequence[Column], image: Images
    ) -> pa.LargeBinaryArray | None:
        if not key:
            return None
        name = schema_name(batch.table, "Key")
        schema = row_schema(key, name, optional=False, lossless=self._lossless)
        row = self._row(key, image, len(batch))
        return row_texts(*self._around([row], schema), count=len(batch))

    def _key_header(
        self,
        batch: RowBatch,
        key: Sequence[Column],
        image: Images,
        keys: pa.LargeBinaryArray | None,
    ) -> pa.LargeBinaryArray | None:
        """Return the keys; with schemas, which Kafka Connect reads, as JSON in a JSON string.

        Connect's default converter of headers makes a map of an object. If its values have several
        types it has no schema, and Debezium's JDBC sink refuses the message.
        """
        if not self._with_schema:
            return keys
        row = self._row(key, image, len(batch))
        return text_strings(row.cast(pa.large_string()), lossless=True)

    def _values(self, batch: RowBatch) -> pa.LargeBinaryArray:
        table, columns, count = batch.table, batch.columns, len(batch)
        before, after = (
            self._row(columns, image, count) if image else NULL for image in (batch.old, batch.new)
        )
        source = self._source(
            (table.schema_name, table.name), digits(batch.commit_ts), digits(batch.start_ts),
            digits(batch.commit_ts >> tso.LOGICAL_BITS), snapshot=batch.snapshot,
        )  # fmt: skip
        op = _READ if batch.snapshot else _OPS[batch.kind]
        envelope = _envelope(source, batch.built_ms, op, before, after)
        return row_texts(
            *self._around(envelope, envelope_schema(table, columns, lossless=self._lossless)),
            count=count,
        )

    def _row(self, columns: Sequence[Column], image: Images, count: int) -> pa.LargeBinaryArray:
        return objects(
            [(c.name, json_values(c, image[c.name], lossless=self._lossless)) for c in columns],
            count,
        )

    def _source(
        self,
        name: tuple[str, str],
        commit_ts: pa.LargeBinaryArray | int,
        start_ts: pa.LargeBinaryArray | int,
        moment_ms: pa.LargeBinaryArray | None = None,
        *,
        snapshot: bool = False,
    ) -> Parts:
        """Return the block `source`, of one message or of an array.

        `name`: the database's and the table's.
        """
        version, connector = (_VERSION, "sluice") if self._lossless else (_TICDC_VERSION, "TiCDC")
        head = {"version": version, "connector": connector, "name": NAME}
        database, table = map(json_string, name)
        if moment_ms is None:
            moment_ms = b"%d" % tso.physical_ms(commit_ts)
        return [
            json.dumps(head, separators=(",", ":")).encode()[:-1],
            b',"ts_ms":',
            moment_ms,
            b',"snapshot":"%b","db":%b,"table":%b,"server_id":0,"gtid":null,"file":"","pos":0'
            b',"row":0,"thread":0,"query":null,"commit_ts":'
            % (b"true" if snapshot else b"false", database, table),
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


def _envelope(
    source: Parts,
    built_ms: int,
    op: bytes,
    before: pa.LargeBinaryArray | bytes,
    after: pa.LargeBinaryArray | bytes,
) -> Parts:
    head = b',"ts_ms":%d%b"%b","before":' % (built_ms, _NO_TRANSACTION, op)
    return [b'{"source":', *source, head, before, b',"after":', after, b"}"]
