"""TiDB's binary JSON.

Layout: one type byte, then the body, everything little-endian.

    01 object, 03 array   u32 element count, u32 size in bytes (from the count on), entries, data
    04 literal            1 byte: 0 null, 1 true, 2 false
    09 int64, 0a uint64, 0b double, 0e date, 0f datetime, 10 timestamp    8 bytes
    0c string             uvarint byte length, utf-8
    0d opaque             MySQL type byte, uvarint length, bytes
    11 time               int64 nanoseconds, u32 fraction digits

An array has a value entry of 5 bytes an element: type, then the offset of its body (for literals
the literal itself in the first byte). An object has a key entry of 6 bytes each (u32 offset, u16
length), sorted by key bytes, then the value entries. Offsets count from the container's own count
field. Dates are core times: from the top 14 bits year, 4 month, 5 day, 5 hour, 6 minute, 6 second,
20 microsecond, 4 fraction digits and kind.

`decode_json` gives the text TiDB prints, which is what a downstream stores.
"""

import base64
import json
import math
import re
import struct
from functools import lru_cache
from typing import Any

from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.float import format_double
from sluice.tidb.codec.times import format_duration
from sluice.tidb.codec.varint import decode_uvarint, encode_uvarint

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE = (
    0x01,
    0x03,
    0x04,
    0x09,
    0x0A,
    0x0B,
    0x0C,
    0x0D,
)
DATE, DATETIME, TIMESTAMP, TIME = 0x0E, 0x0F, 0x10, 0x11

_FIXED = {LITERAL: 1, INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, TIME: 12}
_LITERALS = ("null", "true", "false")
_MAX_DEPTH = 200
_SPECIAL = re.compile(r'["\\\x00-\x1f\u2028\u2029]')
_I64, _U64, _F64, _HEAD = (struct.Struct(f).unpack_from for f in ("<q", "<Q", "<d", "<II"))
_ENTRY, _KEY_ENTRY = struct.Struct("<BI"), struct.Struct("<IH")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_size(data: bytes | memoryview, pos: int) -> int:
    """Return bytes of the JSON value (type byte included) at `pos`.

    Raises CodecError when it doesn't fit into `data`.
    """
    if pos >= len(data):
        raise CodecError("JSON without a type", pos)
    kind = data[pos]
    if kind in _FIXED:
        size = 1 + _FIXED[kind]
    elif kind in (OBJECT, ARRAY):
        if len(data) < pos + 9:
            raise CodecError("JSON container without a size", pos)
        size = 1 + struct.unpack_from("<I", data, pos + 5)[0]
        if size < 9:
            raise CodecError(f"JSON container of {size - 1} bytes", pos)
    elif kind in (STRING, OPAQUE):
        length, end = decode_uvarint(data, pos + (1 if kind == STRING else 2))
        size = end - pos + length
    else:
        raise CodecError(f"JSON type 0x{kind:02x} is unknown", pos)
    if pos + size > len(data):
        raise CodecError(f"JSON value of {size} bytes, {len(data) - pos} are left", pos)
    return size


def decode_json(data: bytes | memoryview, pos: int = 0) -> tuple[str, int]:
    """Read type and body at `pos`; returns `(text as TiDB prints it, position after it)`."""
    end = pos + json_size(data, pos)
    try:
        return _text(data[pos], bytes(data[pos + 1 : end]), 0, end - pos - 1, 0), end
    except (struct.error, IndexError) as error:
        raise CodecError(f"JSON value points outside itself: {error}", pos) from error


def quote(text: str) -> str:
    """Write `text` as a JSON string literal in TiDB's escaping."""
    if _SPECIAL.search(text) is None:
        return f'"{text}"'
    return f'"{_SPECIAL.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


@lru_cache(4096)
def _key(raw: bytes) -> str:
    return quote(raw.decode("utf-8", "replace")) + ": "


def _text(kind: int, data: bytes, at: int, limit: int, depth: int) -> str:
    """Return the text of the value whose body is at `at` and ends before `limit`."""
    if kind == STRING:
        start, end = _sized(data, at, limit)
        return quote(data[start:end].decode("utf-8", "replace"))
    if kind in (OBJECT, ARRAY):
        return _container_text(kind, data, at, limit, depth)
    if kind not in _FIXED and kind != OPAQUE:
        raise CodecError(f"JSON type 0x{kind:02x} is unknown")
    if at + _FIXED.get(kind, 1) > limit:
        raise CodecError("JSON value points outside its container")
    if kind == INT64:
        return str(_I64(data, at)[0])
    if kind == DOUBLE:
        return format_double(_F64(data, at)[0])
    if kind == LITERAL:
        return _literal(data[at])
    if kind == UINT64:
        return str(_U64(data, at)[0])
    if kind in (DATE, DATETIME, TIMESTAMP):
        return f'"{_core_time(_U64(data, at)[0], kind)}"'
    if kind == TIME:
        return f'"{format_duration(_I64(data, at)[0], 6)}"'
    start, end = _sized(data, at + 1, limit)
    return f'"base64:type{data[at]}:{base64.b64encode(data[start:end]).decode()}"'


def _container_text(kind: int, data: bytes, at: int, limit: int, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise CodecError(f"JSON is nested deeper than {_MAX_DEPTH}")
    count, size = _HEAD(data, at)
    end = at + size
    values = at + 8 + (6 * count if kind == OBJECT else 0)
    after = values + 5 * count
    if end > limit or after > end:
        raise CodecError(
            f"JSON container of {size} bytes with {count} elements in {limit - at} bytes"
        )
    parts = []
    for entry, (element, offset) in enumerate(_ENTRY.iter_unpack(data[values:after])):
        if element == LITERAL:
            parts.append(_literal(data[values + 5 * entry + 1]))
        else:
            parts.append(_text(element, data, at + offset, end, depth + 1))
    if kind == ARRAY:
        return f"[{', '.join(parts)}]"
    for i, (offset, length) in enumerate(_KEY_ENTRY.iter_unpack(data[at + 8 : values])):
        if offset + length > size:
            raise CodecError("JSON key points outside its object")
        parts[i] = _key(data[at + offset : at + offset + length]) + parts[i]
    return f"{{{', '.join(parts)}}}"


def _literal(value: int) -> str:
    if value > 2:
        raise CodecError(f"JSON literal {value} is unknown")
    return _LITERALS[value]


def _sized(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Start and end of bytes that have their length in front."""
    length = data[at]
    at += 1
    if length > 0x7F:
        length, at = decode_uvarint(data, at - 1)
    if at + length > limit:
        raise CodecError(f"JSON string of {length} bytes, {max(0, limit - at)} are left")
    return at, at + length


def _core_time(bits: int, kind: int) -> str:
    year, month, day = bits >> 50, bits >> 46 & 15, bits >> 41 & 31
    date = f"{year:04}-{month:02}-{day:02}"
    if kind == DATE:
        return date
    hour, minute, second, micro = (
        bits >> 36 & 31,
        bits >> 30 & 63,
        bits >> 24 & 63,
        bits >> 4 & 0xFFFFF,
    )
    return f"{date} {hour:02}:{minute:02}:{second:02}.{micro:06}"


def encode_json(text: str) -> bytes:
    """Encode a JSON text; return its type and body.

    Integers become int64 or uint64 where they fit, else doubles; of a doubled key the last value
    counts.
    """
    try:
        return bytes(_encode(json.loads(text)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CodecError(f"invalid JSON {text[:80]!r}: {error}") from error


def _encode(value: Any) -> bytearray:
    if value is None or isinstance(value, bool):
        return bytearray((LITERAL, 0 if value is None else 1 if value else 2))
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return bytearray((INT64,)) + struct.pack("<q", value)
        if 0 <= value < 1 << 64:
            return bytearray((UINT64,)) + struct.pack("<Q", value)
        value = float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CodecError("JSON has no infinite numbers")
        return bytearray((DOUBLE,)) + struct.pack("<d", value)
    if isinstance(value, str):
        raw = value.encode("utf-8", "replace")
        return bytearray((STRING,)) + encode_uvarint(len(raw)) + raw
    if isinstance(value, list):
        return _container(ARRAY, [], [_encode(v) for v in value])
    members = sorted((k.encode("utf-8", "replace"), v) for k, v in value.items()) if value else []
    return _container(OBJECT, [k for k, _ in members], [_encode(v) for _, v in members])


def _container(kind: int, keys: list[bytes], values: list[bytearray]) -> bytearray:
    at = 8 + 6 * len(keys) + 5 * len(values)
    key_entries, value_entries, data = bytearray(), bytearray(), bytearray()
    for key in keys:
        if len(key) > 0xFFFF:
            raise CodecError(f"JSON key of {len(key)} bytes")
        key_entries += struct.pack("<IH", at + len(data), len(key))
        data += key
    for value in values:
        if value[0] == LITERAL:
            value_entries += struct.pack("<BI", LITERAL, value[1])
        else:
            value_entries += struct.pack("<BI", value[0], at + len(data))
            data += value[1:]
    size = at + len(data)
    return (
        bytearray((kind,))
        + struct.pack("<II", len(values), size)
        + key_entries
        + value_entries
        + data
    )
