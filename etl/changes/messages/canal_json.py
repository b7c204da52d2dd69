"""Encode changes as Canal-JSON: TiCDC's bytes, without and with its extension.

A message a row change, with a null key. Every value is a JSON string or null:

    numbers, BIT, ENUM, SET    decimal digits; of an ENUM its index, of a SET its bitmask
    FLOAT, DOUBLE              shortest decimals without an exponent
    bytes                      a character of Latin-1 for each byte
    text, JSON and times       as TiDB shows them

Lossless, `mysqlType` has the type with its parameters, so that ENUM and SET can be read by name,
and `_tidb` names the zone of TIMESTAMPs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_text import quote_text
from sluice.etl.changes.messages.json_text import (
    NULL,
    changed_objects,
    float_digits,
    json_string,
    latin1_strings,
    objects,
    plain_strings,
    row_texts,
    text_strings,
)
from sluice.etl.changes.messages.message import (
    BINARY,
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
    watermark_headers,
)
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.etl.changes.steps import MessageSchema
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

_ROW_TYPES = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
DDL_TYPES = {
    Action.CREATE_TABLE: "CREATE",
    Action.CREATE_TABLES: "CREATE",
    Action.RENAME_TABLE: "RENAME",
    Action.RENAME_TABLES: "RENAME",
    Action.ADD_INDEX: "CINDEX",
    Action.ADD_PRIMARY_KEY: "CINDEX",
    Action.ADD_FOREIGN_KEY: "CINDEX",
    Action.DROP_INDEX: "DINDEX",
    Action.DROP_INDEXES: "DINDEX",
    Action.DROP_PRIMARY_KEY: "DINDEX",
    Action.DROP_FOREIGN_KEY: "DINDEX",
    Action.DROP_TABLE: "ERASE",
    Action.TRUNCATE_TABLE: "TRUNCATE",
    Action.ADD_COLUMN: "ALTER",
    Action.ADD_COLUMNS: "ALTER",
    Action.DROP_COLUMN: "ALTER",
    Action.DROP_COLUMNS: "ALTER",
    Action.MODIFY_COLUMN: "ALTER",
    Action.REBASE_AUTO_ID: "ALTER",
    Action.SET_DEFAULT_VALUE: "ALTER",
    Action.MODIFY_TABLE_COMMENT: "ALTER",
    Action.RENAME_INDEX: "ALTER",
    Action.ALTER_INDEX_VISIBILITY: "ALTER",
    Action.MODIFY_TABLE_CHARSET: "ALTER",
    Action.MULTI_SCHEMA_CHANGE: "ALTER",
    Action.ADD_PARTITION: "ALTER",
    Action.DROP_PARTITION: "ALTER",
    Action.TRUNCATE_PARTITION: "ALTER",
    Action.EXCHANGE_PARTITION: "ALTER",
    Action.REORGANIZE_PARTITION: "ALTER",
    Action.PARTITION_TABLE: "ALTER",
    Action.REMOVE_PARTITIONING: "ALTER",
}
"""Canal's name of a DDL statement; QUERY for every other."""

# numbers of java.sql.Types
_INTEGER, _BIGINT, _SMALLINT, _DECIMAL = 4, -5, 5, 3
_SQL_TYPES = {
    types.TINYINT: -6,
    types.SMALLINT: _SMALLINT,
    types.MEDIUMINT: _INTEGER,
    types.INT: _INTEGER,
    types.BIGINT: _BIGINT,
    types.FLOAT: 7,
    types.DOUBLE: 8,
    types.DECIMAL: _DECIMAL,
    types.BIT: -7,
    types.ENUM: 4,
    types.SET: -7,
    types.CHAR: 1,
    types.DATE: 91,
    types.NEWDATE: 91,
    types.TIME: 92,
    types.DATETIME: 93,
    types.TIMESTAMP: 93,
    types.NULL: 0,
} | dict.fromkeys(types.LONG, 2005)
_BLOB, _VARCHAR = 2004, 12
_PROMOTED = {
    types.TINYINT: (2**7, _SMALLINT),
    types.SMALLINT: (2**15, _INTEGER),
    types.INT: (2**31, _BIGINT),
    types.BIGINT: (2**63, _DECIMAL),
}
"""The first unsigned number that needs a larger type in Java, and that type."""
_WITH_LENGTH = {"int", "year", "bit"}
_TIMES = {"time", "datetime", "timestamp"}


class CanalJson(Encoder):
    """Encode one pipeline's changes as Canal-JSON."""

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self.time_zone = options.time_zone
        self._lossless = options.is_lossless
        self._extension = options.tidb_extension
        self._changed_only = options.content_compatible
        self._full_types = options.content_compatible or options.is_lossless

    def rows(self, batch: RowBatch) -> pa.LargeBinaryArray:
        """Return the frame of each change's message."""
        table, count = batch.table, len(batch)
        data = self._object(batch, batch.present)
        parts: list[pa.LargeBinaryArray | bytes] = [
            self._head(table.schema_name, table.name, _primary_key(table)),
            b',"isDdl":false,"type":"%b","es":' % _ROW_TYPES[batch.kind].encode(),
            digits(batch.commit_ts >> tso.LOGICAL_BITS),
            b',"ts":%d,"sql":"","sqlType":' % batch.built_ms,
            objects([(c.name, _sql_type(c, batch.present)) for c in batch.columns], count),
            b',"mysqlType":',
            _mysql_types(batch, full=self._full_types),
            b',"old":',
        ]
        if batch.kind == UPDATE:
            old = self._changed(batch) if self._changed_only else self._object(batch, batch.old)
            parts += [b"[", old, b"]"]
        else:
            parts.append(NULL)
        parts += [b',"data":[', data, b"]"]
        if self._extension:
            more = b',"snapshot":true' if batch.snapshot and self._lossless else b""
            parts += [b',"_tidb":{"commitTs":', digits(batch.commit_ts), self._zone(), more, b"}"]
        value = row_texts(*parts, b"}", count=count)
        return frames(batch.commit_ts, row_headers(batch), None, value)

    def key_of(self, message: Message, schemas: Sequence[MessageSchema]) -> str:
        """Return the primary key of a row's message as JSON; "" without one."""
        document = json.loads(message.value or b"{}")
        names, rows = document.get("pkNames"), document.get("data")
        return json.dumps(chosen(rows[0], names)) if names and rows else ""

    def key_only(
        self, message: Message, schemas: Sequence[MessageSchema], location: str
    ) -> Message | None:
        """Return a row's message with the primary key alone, and a field in `_tidb`, as TiCDC."""
        document = json.loads(message.value or b"{}")
        names = document.get("pkNames")
        if not names or not self._extension:
            return None
        for part in ("sqlType", "mysqlType"):
            document[part] = chosen(document[part], names)
        for part in ("data", "old"):
            document[part] = document[part] and [chosen(row, names) for row in document[part]]
        document["_tidb"] |= (
            {"claimCheckLocation": location} if location else {"onlyHandleKey": True}
        )
        return message._replace(value=json_bytes(document))

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return the message of a DDL statement."""
        name = DDL_TYPES.get(job.type, "QUERY")  # type: ignore[call-overload]
        value = b"".join(
            (
                self._head(job.schema_name, job.table_name, NULL),
                b',"isDdl":true,"type":"%b","es":%d,"ts":%d,"sql":'
                % (name.encode(), tso.physical_ms(job.commit_ts), built_ms),
                json_string(job.query, lossless=self._lossless),
                b',"sqlType":null,"mysqlType":null,"old":null,"data":null',
                b',"_tidb":{"commitTs":%d}' % job.commit_ts if self._extension else b"",
                b"}",
            )
        )
        return [Message(job.commit_ts, None, value, ddl_headers(job))]

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the watermark, which only the extension has."""
        if not self._extension:
            return []
        value = b"".join(
            (
                self._head("", "", NULL),
                b',"isDdl":false,"type":"TIDB_WATERMARK","es":%d,"ts":%d,"sql":""'
                % (tso.physical_ms(commit_ts), built_ms),
                b',"sqlType":null,"mysqlType":null,"old":null,"data":null',
                b',"_tidb":{"watermarkTs":%d}}' % commit_ts,
            )
        )
        return [Message(commit_ts, None, value, watermark_headers(commit_ts))]

    def _head(self, schema: str, table: str, key: bytes) -> bytes:
        names = json_string(schema), json_string(table), key
        return b'{"id":0,"database":%b,"table":%b,"pkNames":%b' % names

    def _zone(self) -> bytes:
        return b',"tz":' + json_string(self.time_zone) if self._lossless else b""

    def _object(self, batch: RowBatch, image: Images) -> pa.LargeBinaryArray:
        return objects([(c.name, self._value(c, image[c.name])) for c in batch.columns], len(batch))

    def _changed(self, batch: RowBatch) -> pa.LargeBinaryArray:
        fields = []
        for column in batch.columns:
            was, is_now = batch.old[column.name], batch.new[column.name]
            both = pc.and_(was.is_null(), is_now.is_null())
            same = pc.or_(pc.fill_null(pc.equal(was, is_now), fill_value=False), both)
            fields.append((column.name, self._value(column, was), pc.invert(same)))
        return changed_objects(fields, len(batch))

    def _value(self, column: Column, array: pa.Array) -> pa.LargeBinaryArray:
        match column.kind:
            case "int" | "year" | "bit" | "enum" | "set":
                return plain_strings(digits(array))
            case "float" | "double":
                return plain_strings(float_digits(array))
            case "binary":
                return latin1_strings(array)
            case "decimal" | "date" | "time" | "datetime" | "timestamp":
                return plain_strings(array.cast(BINARY))
            case _:
                return text_strings(array, lossless=self._lossless)


def mysql_type(column: Column, *, full: bool) -> str:
    """Return a column's type as Canal names it; `full`: with its parameters."""
    name = types.NAMES.get(column.tp, "")
    if column.charset == "binary":
        name = types.BYTES_NAMES.get(name, name)
    if full:
        name += _parameters(column)
    if column.unsigned and column.kind in ("int", "decimal", "float", "double"):
        name += " unsigned"
    if column.flag & types.FLAG_ZEROFILL and column.kind != "year":
        name += " zerofill"
    return name


def _parameters(column: Column) -> str:
    kind, length = column.kind, column.flen
    numbers: list[int] = []
    if kind in ("enum", "set"):
        return f"({','.join(map(quote_text, column.elems))})"
    if kind in _WITH_LENGTH or (kind in ("text", "binary") and column.tp not in types.LONG):
        numbers = [length]
    elif kind == "decimal" or (kind in ("float", "double") and column.decimal >= 0):
        numbers = [length, max(0, column.decimal)]
    elif kind in _TIMES and column.fsp:
        numbers = [column.fsp]
    elif kind == "vector" and length > 0:
        numbers = [length]
    if not numbers or numbers[0] < 0:
        return ""
    return f"({','.join(map(str, numbers))})"


def sql_type(column: Column) -> int:
    """Return the number of java.sql.Types of a column, of an unsigned one as if it were signed."""
    return _BLOB if column.kind == "binary" else _SQL_TYPES.get(column.tp, _VARCHAR)


def _sql_type(column: Column, image: Images) -> pa.LargeBinaryArray | bytes:
    """Return the number of java.sql.Types; unsigned numbers promote by value."""
    own = b"%d" % sql_type(column)
    if not column.unsigned or column.tp not in _PROMOTED:
        return own
    limit, larger = _PROMOTED[column.tp]
    above = pc.fill_null(
        pc.greater_equal(image[column.name], pa.scalar(limit, pa.uint64())), fill_value=False
    )
    if not pc.any(above).as_py():
        return own
    return pc.if_else(above, pa.scalar(b"%d" % larger, BINARY), pa.scalar(own, BINARY))


def _primary_key(table: Table) -> bytes:
    return b"[" + b",".join(map(json_string, table.primary_key)) + b"]"


def _mysql_types(batch: RowBatch, *, full: bool) -> bytes:
    named = {column.name: mysql_type(column, full=full) for column in batch.columns}
    return json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode()
