"""TiDB's formats, written only: protobuf messages, datums, decimals, packed times, binary JSON.

Formats as in TiDB's `util/codec`, `types` and the binlog's proto files; each function gives the
bytes that TiDB would.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

NIL = b"\x00"
_DIGITS_TO_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def uvarint(number: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def varint(number: int) -> bytes:
    """Zigzag LEB128 of a 64-bit integer."""
    return uvarint(((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF)


def field(number: int, value: int | bytes) -> bytes:
    """A protobuf field: an integer as varint, bytes with their length."""
    if isinstance(value, bytes):
        return uvarint(number << 3 | 2) + uvarint(len(value)) + value
    return uvarint(number << 3) + uvarint(value & 0xFFFFFFFFFFFFFFFF)


def integer(number: int) -> bytes:
    """Datum of a signed integer, a YEAR, a TIME in nanoseconds."""
    return b"\x08" + varint(number)


def unsigned(number: int) -> bytes:
    """Datum of an unsigned integer, a packed time, BIT, ENUM, SET."""
    return b"\x09" + uvarint(number)


def compact(data: bytes) -> bytes:
    """Datum of text or bytes."""
    return b"\x02" + varint(len(data)) + data


def real(number: float) -> bytes:
    """Datum of FLOAT or DOUBLE."""
    bits = struct.unpack(">Q", struct.pack(">d", number + 0.0))[0]
    bits = bits | 1 << 63 if bits < 1 << 63 else bits ^ 0xFFFFFFFFFFFFFFFF
    return b"\x05" + struct.pack(">Q", bits)


def decimal(value: Decimal, precision: int, fraction: int) -> bytes:
    """Datum of DECIMAL(precision, fraction)."""
    text = f"{value.copy_abs():.{fraction}f}"
    whole, _, part = text.partition(".")
    whole = whole.lstrip("0").rjust(precision - fraction, "0")
    body = bytearray()
    head = len(whole) % 9
    groups = [whole[:head], *(whole[i : i + 9] for i in range(head, len(whole), 9))]
    groups += [part[i : i + 9] for i in range(0, len(part), 9)]
    for group in groups:
        body += int(group or "0").to_bytes(_DIGITS_TO_BYTES[len(group)], "big")
    if value < 0:
        body = bytearray(byte ^ 0xFF for byte in body)
    body[0] ^= 0x80
    return bytes((6, precision, fraction)) + bytes(body)


def packed_time(text: str) -> int:
    """``YYYY-MM-DD[ HH:MM:SS[.ffffff]]`` as TiDB packs it."""
    day, _, clock = text.partition(" ")
    year, month, date = (int(part) for part in day.split("-"))
    clock, _, fraction = clock.partition(".")
    hour, minute, second = (int(part) for part in clock.split(":")) if clock else (0, 0, 0)
    ymd = (year * 13 + month) << 5 | date
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | int(
        (fraction or "0").ljust(6, "0")
    )


def nanoseconds(text: str) -> int:
    """``[-]HH:MM:SS[.ffffff]`` in nanoseconds."""
    clock, _, fraction = text.lstrip("-").partition(".")
    hour, minute, second = (int(part) for part in clock.split(":"))
    total = ((hour * 60 + minute) * 60 + second) * 10**9 + int((fraction or "0").ljust(9, "0"))
    return -total if text.startswith("-") else total


def json_datum(document: Any) -> bytes:
    """Datum of a JSON document."""
    code, body = _json(document)
    return b"\x0a" + bytes((code,)) + body


def _json(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes((0 if value is None else 1 if value else 2,))
    if isinstance(value, int):
        return (9, struct.pack("<q", value)) if value < 1 << 63 else (10, struct.pack("<Q", value))
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, uvarint(len(value.encode())) + value.encode()
    if isinstance(value, list):
        return 3, _container([], [_json(item) for item in value])
    keys = sorted(value, key=str.encode)
    return 1, _container([key.encode() for key in keys], [_json(value[key]) for key in keys])


def _container(keys: list[bytes], values: list[tuple[int, bytes]]) -> bytes:
    at = 8 + len(keys) * 6 + len(values) * 5
    entries = bytearray()
    for key in keys:
        entries += struct.pack("<IH", at, len(key))
        at += len(key)
    data = bytearray()
    for code, body in values:
        entries.append(code)
        if code == 4:
            entries += body + b"\0\0\0"
        else:
            entries += struct.pack("<I", at + len(data))
            data += body
    joined = bytes(entries) + b"".join(keys) + bytes(data)
    return struct.pack("<II", len(values), 8 + len(joined)) + joined


def memcomparable(data: bytes) -> bytes:
    """Bytes in groups of eight, as in TiKV keys."""
    out = bytearray()
    for at in range(0, len(data) + 1, 8):
        group = data[at : at + 8]
        out += group.ljust(8, b"\0") + bytes((0xFF - (8 - len(group)),))
    return bytes(out)


def in_key(datum: bytes) -> bytes:
    """A datum of a row or of an insert's handle as it is in TiKV keys."""
    flag = datum[0]
    if flag not in (2, 8, 9):
        return datum
    number, at = 0, 1
    while True:
        number |= (datum[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if datum[at - 1] < 0x80:
            break
    if flag == 9:
        return b"\x04" + struct.pack(">Q", number)
    if flag == 2:
        return b"\x01" + memcomparable(datum[at:])
    return b"\x03" + ordered((number >> 1) ^ -(number & 1))


def ordered(number: int) -> bytes:
    """A signed integer as it is in TiKV keys."""
    return struct.pack(">Q", number + (1 << 63) & 0xFFFFFFFFFFFFFFFF)
