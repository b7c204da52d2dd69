"""TiDB's binary JSON.

Layout: one type byte, then the body, everything little-endian.

    01 object, 03 array   u32 element count, u32 size in bytes (from the count on), entries, data
    04 literal            1 byte: 0 null, 1 true, 2 false
    09 int64, 0a uint64, 0b double, 0e date, 0f datetime, 10 timestamp    8 bytes
    0c string             uvarint byte length, utf-8
    0d opaque             MySQL type byte, uvarint length, bytes
    11 time               int64 nanoseconds, u32 fraction digits

An array has a value entry of 5 bytes an element: type, then the offset of its body (for literals the literal itself in the
first byte). An object has a key entry of 6 bytes each (u32 offset, u16 length), sorted by key bytes, then the value entries.
Offsets count from the container's own count field. Dates are core times: from the top 14 bits year, 4 month, 5 day, 5 hour,
6 minute, 6 second, 20 microsecond, 4 fraction digits and kind.

`decode_json` gives the text TiDB prints, which is what a downstream stores.
"""

import base64
import json
import math
import re
import struct
from typing import Any

from upstream.codec.duration import format_duration
from upstream.codec.errors import CodecError
from upstream.codec.float import format_double
from upstream.codec.varint import decode_uvarint, encode_uvarint

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C, 0x0D
DATE, DATETIME, TIMESTAMP, TIME = 0x0E, 0x0F, 0x10, 0x11

_FIXED = {LITERAL: 1, INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, TIME: 12}
_LITERALS = ("null", "true", "false")
_MAX_DEPTH = 200
_PLAIN = re.compile(r'[^"\\\x00-\x1f\u2028\u2029]*')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_size(data: bytes | memoryview, pos: int) -> int:
    """Bytes of the JSON value (type byte included) at `pos`; raises CodecError when it doesn't fit into `data`."""
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
        return _text(data[pos], memoryview(data)[pos + 1 : end], 0), end
    except (struct.error, IndexError) as error:
        raise CodecError(f"JSON value points outside itself: {error}", pos) from error


def quote(text: str) -> str:
    """`text` as a JSON string literal in TiDB's escaping."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    return '"' + "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if c < " " or c in "\u2028\u2029" else c) for c in text) + '"'


def _text(kind: int, body: memoryview, depth: int) -> str:
    """Text of the value whose body starts at `body[0]`; `body` may be longer than the value."""
    if kind == STRING:
        return quote(str(_sized(body, 0), "utf-8", "replace"))
    if kind == LITERAL:
        if body[0] > 2:
            raise CodecError(f"JSON literal {body[0]} is unknown")
        return _LITERALS[body[0]]
    if kind == INT64:
        return str(struct.unpack_from("<q", body)[0])
    if kind == UINT64:
        return str(struct.unpack_from("<Q", body)[0])
    if kind == DOUBLE:
        return format_double(struct.unpack_from("<d", body)[0])
    if kind in (DATE, DATETIME, TIMESTAMP):
        return f'"{_core_time(struct.unpack_from("<Q", body)[0], kind)}"'
    if kind == TIME:
        return f'"{format_duration(struct.unpack_from("<q", body)[0], 6)}"'
    if kind == OPAQUE:
        return f'"base64:type{body[0]}:{base64.b64encode(_sized(body, 1)).decode()}"'
    if kind not in (OBJECT, ARRAY):
        raise CodecError(f"JSON type 0x{kind:02x} is unknown")
    if depth > _MAX_DEPTH:
        raise CodecError(f"JSON is nested deeper than {_MAX_DEPTH}")
    count, size = struct.unpack_from("<II", body)
    if size > len(body):
        raise CodecError(f"JSON container of {size} bytes in {len(body)}")
    body = body[:size]
    if kind == ARRAY:
        _entries_fit(8 + 5 * count, size)
        return "[" + ", ".join(_element(body, 8 + 5 * i, depth) for i in range(count)) + "]"
    _entries_fit(8 + 11 * count, size)
    members = []
    for i in range(count):
        at, length = struct.unpack_from("<IH", body, 8 + 6 * i)
        if at + length > size:
            raise CodecError("JSON key points outside its object")
        key = quote(str(body[at : at + length], "utf-8", "replace"))
        members.append(f"{key}: {_element(body, 8 + 6 * count + 5 * i, depth)}")
    return "{" + ", ".join(members) + "}"


def _entries_fit(needed: int, size: int) -> None:
    if needed > size:
        raise CodecError(f"JSON container of {size} bytes can't hold its {needed} bytes of entries")


def _element(container: memoryview, entry: int, depth: int) -> str:
    kind = container[entry]
    if kind == LITERAL:
        return _text(kind, container[entry + 1 :], depth)
    at: int = struct.unpack_from("<I", container, entry + 1)[0]
    if at >= len(container):
        raise CodecError("JSON value points outside its container")
    return _text(kind, container[at:], depth + 1)


def _sized(body: memoryview, pos: int) -> memoryview:
    length, pos = decode_uvarint(body, pos)
    if pos + length > len(body):
        raise CodecError(f"JSON string of {length} bytes, {len(body) - pos} are left")
    return body[pos : pos + length]


def _core_time(bits: int, kind: int) -> str:
    year, month, day = bits >> 50, bits >> 46 & 15, bits >> 41 & 31
    date = f"{year:04}-{month:02}-{day:02}"
    if kind == DATE:
        return date
    hour, minute, second, micro = bits >> 36 & 31, bits >> 30 & 63, bits >> 24 & 63, bits >> 4 & 0xFFFFF
    return f"{date} {hour:02}:{minute:02}:{second:02}.{micro:06}"


def encode_json(text: str) -> bytes:
    """Type and body of a JSON text. Integers become int64 or uint64 where they fit, else doubles; of a doubled key the last
    value counts."""
    try:
        return bytes(_encode(json.loads(text)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CodecError(f"{text[:80]!r} is no JSON: {error}") from error


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
    return bytearray((kind,)) + struct.pack("<II", len(values), size) + key_entries + value_entries + data
