r"""Encode changes in TiCDC's Open protocol: JSON in binary frames, one change a message.

    key     version 1, u64 | length u64 | {"ts": …, "scm": …, "tbl": …, "t": 1 | 2 | 3}
    value   length u64 | {"u": new row, "p": row before} or {"d": deleted row}

All numbers of the frames are big-endian. `t` is 1 for a row, 2 for DDL, 3 for a watermark. A column
is `{"t": type, "h": in the handle key, "f": flags, "v": value}`. Values:

    whole numbers, BIT, ENUM, SET, YEAR    numbers; of an ENUM its index, of a SET its bitmask
    FLOAT, DOUBLE                          numbers
    DECIMAL, times, JSON, CHAR, VARCHAR    text
    BINARY, VARBINARY                      text in Go's escapes, as in `\x89P\xff`
    TEXT, BLOB                             base64
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.messages.json_text import (
    NULL,
    base64_strings,
    by_distinct,
    float_numbers,
    json_string,
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
    ddl_headers,
    digits,
    frames,
    handle_key,
    json_bytes,
    row_headers,
    watermark_headers,
)
from sluice.etl.changes.messages.message_format import MessageFormat
from sluice.etl.changes.steps import MessageSchema
from sluice.relay import DELETE, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

_U64 = struct.Struct(">Q")
_VERSION = _U64.pack(1)
_ROW, _DDL, _RESOLVED = 1, 2, 3

_BINARY, _HANDLE, _GENERATED, _PRIMARY, _UNIQUE, _MULTIPLE, _NULLABLE, _UNSIGNED = (
    1 << bit for bit in range(8)
)
_WITH_CHARSET = {"text", "enum", "set"}
_GO_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


class OpenProtocol(Encoder):
    """Encode one pipeline's changes in the Open protocol."""

    def __init__(self, options: MessageFormat) -> None:
        """Keep the options."""
        self.time_zone = options.time_zone
        self._lossless = options.is_lossless

    def rows(self, batch: RowBatch) -> pa.LargeBinaryArray:
        """Return the frame of each change's message."""
        table, count = batch.table, len(batch)
        names = json_string(table.schema_name), json_string(table.name)
        rest = b',"scm":%b,"tbl":%b,"t":%d}' % (*names, _ROW)
        key = row_texts(b'{"ts":', digits(batch.commit_ts), rest, count=count)
        if batch.kind == DELETE:
            value = objects([("d", self._row(batch, batch.old))], count)
        else:
            value = objects(
                [("u", self._row(batch, batch.new))]
                + ([("p", self._row(batch, batch.old))] if batch.kind == UPDATE else []),
                count,
            )
        key, value = row_texts(_VERSION, _framed(key), count=count), _framed(value)
        return frames(batch.commit_ts, row_headers(batch), key, value)

    def key_of(self, message: Message, schemas: Sequence[MessageSchema]) -> str:
        """Return the handle key of a row's message as JSON; "" without one."""
        rows = _rows_of(message)
        handle = _handles(next(iter(rows.values()))) if rows else {}
        return json.dumps({name: each["v"] for name, each in handle.items()}) if handle else ""

    def key_only(
        self, message: Message, schemas: Sequence[MessageSchema], location: str
    ) -> Message | None:
        """Return a row's message with the handle key alone, and a field in the key, as TiCDC."""
        rows = {part: _handles(row) for part, row in _rows_of(message).items()}
        if not rows or not all(rows.values()):
            return None
        key = json.loads((message.key or b"")[len(_VERSION) + _U64.size :])
        key |= {"ccl": location} if location else {"ohk": True}
        return message._replace(
            key=_VERSION + _sized(json_bytes(key)), value=_sized(json_bytes(rows))
        )

    def ddl(self, job: DdlJob, built_ms: int) -> list[Message]:
        """Return the message of a DDL statement."""
        query = json_string(job.query, lossless=self._lossless)
        names = json_string(job.schema_name), json_string(job.table_name)
        key = b'{"ts":%d,"scm":%b,"tbl":%b,"t":%d}' % (job.commit_ts, *names, _DDL)
        value = b'{"q":%b,"t":%d}' % (query, job.type)
        return [Message(job.commit_ts, _VERSION + _sized(key), _sized(value), ddl_headers(job))]

    def watermark(self, commit_ts: int, built_ms: int) -> list[Message]:
        """Return the watermark."""
        key = b'{"ts":%d,"t":%d}' % (commit_ts, _RESOLVED)
        return [
            Message(commit_ts, _VERSION + _sized(key), _sized(b""), watermark_headers(commit_ts))
        ]

    def _row(self, batch: RowBatch, image: Images) -> pa.LargeBinaryArray:
        handle = handle_key(batch.table)
        fields: list[tuple[str, pa.LargeBinaryArray | bytes]] = []
        for column in batch.columns:
            is_handle = column.name in handle
            head = b'{"t":%d%b,"f":%d,"v":' % (
                column.tp,
                b',"h":true' if is_handle else b"",
                _flags(batch.table, column, handle),
            )
            value = pc.fill_null(self._value(column, image[column.name]), pa.scalar(NULL, BINARY))
            fields.append((column.name, row_texts(head, value, b"}", count=len(batch))))
        return objects(fields, len(batch))

    def _value(self, column: Column, array: pa.Array) -> pa.LargeBinaryArray:
        if column.tp in types.LONG:
            return base64_strings(array)
        match column.kind:
            case "int" | "year" | "bit" | "enum" | "set":
                return digits(array)
            case "float" | "double":
                return float_numbers(array)
            case "binary":
                return by_distinct(array, _go_string)
            case "decimal" | "date" | "time" | "datetime" | "timestamp":
                return plain_strings(array.cast(BINARY))
            case _:
                return text_strings(array, lossless=self._lossless)


def _rows_of(message: Message) -> dict[str, dict[str, Any]]:
    """Return the images of a row's message; {} of another one."""
    if json.loads((message.key or b"")[len(_VERSION) + _U64.size :])["t"] != _ROW:
        return {}
    rows: dict[str, dict[str, Any]] = json.loads((message.value or b"")[_U64.size :])
    return rows


def _handles(row: dict[str, Any]) -> dict[str, Any]:
    return {name: column for name, column in row.items() if column.get("h")}


def _go_string(raw: bytes | None) -> bytes | None:
    return None if raw is None else json_string(go_escaped(raw))


def go_escaped(raw: bytes) -> str:
    """Return bytes as Go quotes a string, without the quotes."""
    parts = []
    for character in raw.decode("utf-8", "surrogateescape"):
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif code in _GO_ESCAPES:
            parts.append("\\" + _GO_ESCAPES[code])
        elif character.isprintable():
            parts.append(character)
        elif code < 0x80:
            parts.append(f"\\x{code:02x}")
        else:
            parts.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "".join(parts)


def _flags(table: Table, column: Column, handle: Sequence[str]) -> int:
    """Return what TiCDC says of a column."""
    is_binary = column.charset == "binary" or column.kind not in _WITH_CHARSET
    found = _BINARY * is_binary | _HANDLE * (column.name in handle)
    found |= _GENERATED * bool(column.generated)
    found |= _PRIMARY * (column.name in table.primary_key)
    for index in table.indexes:
        if all(name != column.name for name, _, _ in index.columns):
            continue
        found |= _UNIQUE * (index.unique and not index.primary)
        found |= _MULTIPLE * (len(index.columns) > 1)
    return found | _NULLABLE * (not column.not_null) | _UNSIGNED * column.unsigned


def _framed(texts: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    sizes = pc.binary_length(texts).to_numpy().astype(">u8")
    packed = pa.py_buffer(sizes.tobytes())
    lengths = pa.Array.from_buffers(pa.binary(_U64.size), len(texts), [None, packed])
    return row_texts(lengths.cast(BINARY), texts, count=len(texts))


def _sized(text: bytes) -> bytes:
    return _U64.pack(len(text)) + text
