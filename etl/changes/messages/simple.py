"""Encode changes in TiCDC's Simple protocol: JSON, with the table's schema in messages of its own.

A message a row change, with a null key. Every value is a JSON string or null, but TIMESTAMP:

    numbers, BIT, ENUM, SET    decimal digits; of an ENUM its index, of a SET its bitmask
    FLOAT, DOUBLE              shortest decimals without an exponent
    bytes                      base64
    text, JSON and times       as TiDB shows them
    TIMESTAMP                  {"location": zone, "value": text}

With `with_checksum` rows have the checksum of `sluice.etl.changes.messages.row_checksum`, and
schemas list their columns by id, as TiCDC's, which is the checksum's order.

Types are in the table's schema alone: in DDL messages, and in the BOOTSTRAP that goes to every
partition in front of the table's rows. Rows name the schema by `schemaVersion`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.messages.canal_json import DDL_TYPES
from sluice.etl.changes.messages.json_text import (
    base64_strings,
    float_digits,
    json_string,
    objects,
    plain_strings,
    row_texts,
    text_strings,
)
from sluice.etl.changes.messages.message import (
    Encoder,
    Images,
    Message,
    RowBatch,
    chosen,
    ddl_headers,
    digits,
    frames,
    json_bytes,
    row_headers,
    shown_columns,
    watermark_headers,
)
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.etl.changes.messages.row_checksum import in_id_order, row_checksums
from sluice.etl.changes.steps import MessageSchema
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import STATE_PUBLIC, Column, Table

BOOTSTRAP_INTERVAL_S = 120
"""TiCDC's `send-bootstrap-interval-in-sec`: a new reader knows a table's types after so long."""
BOOTSTRAP_ROWS = 10_000
"""TiCDC's `send-bootstrap-in-msg-count`."""

_CHECKSUM_VERSION = 0
"""TiDB's number of the checksum over columns."""
_ROW_TYPES = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
_PART = "table"
_VERSION_HEADER = "schema_version"
_VERSION_BITS = 53
"""Whole numbers that JSON readers with doubles keep."""


class Simple(Encoder):
    """Encode one pipeline's changes in the Simple protocol."""

    describes_tables = True

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self.time_zone = options.time_zone
        self._lossless = options.is_lossless
        self._with_checksum = options.with_checksum
        self._schemas: dict[tuple[str, str], MessageSchema] = {}

    @property
    def schemas(self) -> list[MessageSchema]:
        """Return the schemas of all tables with messages so far."""
        return list(self._schemas.values())

    def rows(self, batch: RowBatch) -> pa.LargeBinaryArray:
        """Return the frame of each change's message."""
        table, count = batch.table, len(batch)
        version, schema = _table_schema(table)
        described = MessageSchema(table.full_name, f"{_PART} {version}", schema)
        self._schemas[described.record, described.part] = described
        names = json_string(table.schema_name), json_string(table.name), table.id
        parts: list[pa.LargeBinaryArray | bytes] = [
            b'{"version":1,"database":%b,"table":%b,"tableID":%d' % names,
            b',"type":"%b","commitTs":' % _ROW_TYPES[batch.kind].encode(),
            digits(batch.commit_ts),
            b',"buildTs":%d,"schemaVersion":%d' % (batch.built_ms, version),
        ]
        if self._with_checksum:
            parts += self._checksum(batch)
        if batch.kind != DELETE:
            parts += [b',"data":', self._object(batch, batch.new)]
        if batch.kind != INSERT:
            parts += [b',"old":', self._object(batch, batch.old)]
        value = row_texts(*parts, b"}", count=count)
        headers = join(row_headers(batch), f"\0{_VERSION_HEADER}\0{version}".encode())
        return frames(batch.commit_ts, headers, None, value)

    def key_of(self, message: Message, schemas: Sequence[MessageSchema]) -> str:
        """Return the handle key of a row's message as JSON; "" without one."""
        document = json.loads(message.value or b"{}")
        row = document.get("data") or document.get("old") or {}
        found = chosen(row, _handle_columns(message, schemas))
        return json.dumps(found) if found else ""

    def key_only(
        self, message: Message, schemas: Sequence[MessageSchema], location: str
    ) -> Message | None:
        """Return a row's message with the handle key alone, and a field that says so, as TiCDC."""
        names = _handle_columns(message, schemas)
        if not names:
            return None
        document = json.loads(message.value or b"{}")
        document |= {
            part: chosen(document[part], names) for part in ("data", "old") if part in document
        }
        document |= {"claimCheckLocation": location} if location else {"handleKeyOnly": True}
        return message._replace(value=json_bytes(document))

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return a message for each table of a DDL statement, one if it concerns no table."""
        name = DDL_TYPES.get(job.type, "QUERY")  # type: ignore[call-overload]
        query = json_string(job.query, lossless=self._lossless)
        head = b'{"version":1,"type":"%b","sql":%b,"commitTs":%d,"buildTs":%d' % (
            name.encode(),
            query,
            job.commit_ts,
            built_ms,
        )
        headers = ddl_headers(job)
        return [
            Message(job.commit_ts, None, head + schemas + b"}", headers)
            for schemas in _ddl_schemas(job) or [b""]
        ]

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the watermark."""
        value = b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":%d}' % (
            commit_ts,
            built_ms,
        )
        return [Message(commit_ts, None, value, watermark_headers(commit_ts))]

    def _checksum(self, batch: RowBatch) -> list[pa.LargeBinaryArray | bytes]:
        """Return the field `checksum`; the row that a change lacks has 0, as in TiCDC."""
        current, previous = (
            digits(row_checksums(batch.columns, image, len(batch))) if image else b"0"
            for image in (batch.new, batch.old)
        )
        head = b',"checksum":{"version":%d,"corrupted":false,"current":' % _CHECKSUM_VERSION
        return [head, current, b',"previous":', previous, b"}"]

    def _object(self, batch: RowBatch, image: Images) -> pa.LargeBinaryArray:
        return objects([(c.name, self._value(c, image[c.name])) for c in batch.columns], len(batch))

    def _value(self, column: Column, array: pa.Array) -> pa.LargeBinaryArray:
        match column.kind:
            case "int" | "year" | "bit" | "enum" | "set":
                return plain_strings(digits(array))
            case "float" | "double":
                return plain_strings(float_digits(array))
            case "binary":
                return base64_strings(array)
            case "decimal" | "date" | "time" | "datetime":
                return text_strings(array, lossless=True)
            case "timestamp":
                zone = b'{"location":%b,"value":' % json_string(self.time_zone)
                return join(zone, text_strings(array, lossless=True), b"}")
            case _:
                return text_strings(array, lossless=self._lossless)


class Bootstraps:
    """Decide when the schema of a table is sent again, as TiCDC does."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], tuple[int, float]] = {}

    def before(
        self, message: Message, schemas: Sequence[MessageSchema], now_s: float, built_ms: int
    ) -> Message | None:
        """Count a row's message, and return the BOOTSTRAP that goes in front of it, if one is due.

        `now_s`: of the monotonic clock.
        """
        key = _schema_key(message)
        rows, due_s = self._sent.get(key, (BOOTSTRAP_ROWS, 0.0))
        if rows < BOOTSTRAP_ROWS and now_s < due_s:
            self._sent[key] = rows + 1, due_s
            return None
        self._sent[key] = 1, now_s + BOOTSTRAP_INTERVAL_S
        value = b'{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":%d,"tableSchema":%b}' % (
            built_ms,
            _schema_of(message, schemas).encode(),
        )
        shared = tuple(each for each in message.headers if each[0] != "start_ts")
        return Message(message.commit_ts, None, value, shared)


def _schema_key(message: Message) -> tuple[str, str]:
    """Return record and part of the schema that a row's message names."""
    headers = dict(message.headers)
    return headers["table"].decode(), f"{_PART} {headers[_VERSION_HEADER].decode()}"


def _schema_of(message: Message, schemas: Sequence[MessageSchema]) -> str:
    key = _schema_key(message)
    return next(each.text for each in schemas if (each.record, each.part) == key)


def _handle_columns(message: Message, schemas: Sequence[MessageSchema]) -> list[str]:
    """Return the columns of the handle key of a row's message; [] of another one."""
    if _VERSION_HEADER not in dict(message.headers):
        return []
    indexes = json.loads(_schema_of(message, schemas))["indexes"]
    primary = [index["columns"] for index in indexes if index["primary"]]
    unique = [each["columns"] for each in indexes if each["unique"] and not each["nullable"]]
    return next(iter(primary + unique), [])


def _ddl_schemas(job: DdlJob) -> list[bytes]:
    """Return the schemas of each table before and after a statement, as fields of JSON."""
    pairs: list[tuple[Table | None, Table]] = list(job.table_pairs())
    there = {table.id for pair in pairs for table in pair if table is not None}
    for table_id, table in job.effect.tables.items():
        if table_id in there:
            continue
        old = job.before.get(table_id)
        if table is not None:
            pairs.append((None, table))
        elif old is not None:
            pairs.append((old, old))
    return [
        b',"tableSchema":%b' % _table_schema(new)[1].encode()
        + (b',"preTableSchema":%b' % _table_schema(old)[1].encode() if old else b"")
        for old, new in pairs
        if new.is_base_table
    ]


def _table_schema(table: Table) -> tuple[int, str]:
    """Return a table's schema as JSON, and its version.

    The version is a number made of the schema's own content: equal schemas have equal ones,
    wherever they are encoded.
    """
    shown = {column.name: column for column in in_id_order(shown_columns(table))}
    document: dict[str, Any] = {
        "schema": table.schema_name,
        "table": table.name,
        "tableID": table.id,
        "columns": [_column(column) for column in shown.values()],
        "indexes": list(_indexes(table, shown)),
    }
    content = json.dumps(document, separators=(",", ":"))
    digest = hashlib.sha256(content.encode()).digest()
    version = int.from_bytes(digest[:8], "big") >> 64 - _VERSION_BITS
    return version, content.replace(',"columns":', f',"version":{version},"columns":', 1)


def _column(column: Column) -> dict[str, Any]:
    name = types.NAMES.get(column.tp, "")
    if column.charset == "binary":
        name = types.BYTES_NAMES.get(name, name)
    data_type: dict[str, Any] = {
        "mysqlType": name,
        "charset": column.charset,
        "collate": column.collate,
        "length": column.flen,
    }
    if column.decimal >= 0:
        data_type["decimal"] = column.decimal
    if column.elems:
        data_type["elements"] = list(column.elems)
    if column.unsigned:
        data_type["unsigned"] = True
    if column.flag & types.FLAG_ZEROFILL:
        data_type["zerofill"] = True
    return {
        "name": column.name,
        "dataType": data_type,
        "nullable": not column.not_null,
        "default": _default(column),
    }


def _default(column: Column) -> str | None:
    """Return a column's default as its values are written."""
    if not isinstance(column.default, bytes):
        return column.default
    if column.kind == "bit":
        return str(int.from_bytes(column.default, "big"))
    if column.kind == "binary":
        return base64.b64encode(column.default).decode()
    return column.default.decode("utf-8", "surrogateescape")


def _indexes(table: Table, shown: dict[str, Column]) -> Iterable[dict[str, Any]]:
    if table.handle_column is not None:
        yield _index("primary", (table.handle_column.name,), shown, primary=True, unique=True)
    for index in table.indexes:
        names = tuple(name for name, _, _ in index.columns)
        if index.state == STATE_PUBLIC and all(name in shown for name in names):
            yield _index(index.name, names, shown, primary=index.primary, unique=index.unique)


def _index(
    name: str, columns: tuple[str, ...], shown: dict[str, Column], *, primary: bool, unique: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "unique": unique,
        "primary": primary,
        "nullable": any(not shown[column].not_null for column in columns),
        "columns": list(columns),
    }
