"""Datums: one flag byte, then a value. Rows and keys are sequences of them.

    00 nil                       06 decimal: precision, fraction, MyDecimal body
    01 bytes, memcomparable      07 duration: 8 bytes, signed nanoseconds, sign bit flipped
    02 bytes: varint length      08 varint (zigzag)
    03 int: 8 bytes, flipped     09 uvarint
    04 uint: 8 bytes             0a JSON: type byte, body
    05 float: 8 bytes            14 vector: u32 count, float32 each (little-endian)

Rows use 00, 02, 05, 06, 08, 09, 0a (and 07 in clustered handles); keys use 01, 03, 04, 05, 06, 07.
"""

from struct import unpack_from
from typing import NamedTuple

from sluice.tidb.codec.binary_json import decode_json, encode_json, json_size
from sluice.tidb.codec.decimal import decode_decimal, encode_decimal
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.float import decode_float, encode_float
from sluice.tidb.codec.memcomparable import (
    decode_bytes,
    decode_int,
    decode_uint,
    encode_bytes,
    encode_int,
    encode_uint,
)
from sluice.tidb.codec.varint import decode_uvarint, decode_varint, encode_uvarint, encode_varint

NIL, BYTES, COMPACT, INT, UINT, FLOAT, DECIMAL, DURATION, VARINT, UVARINT, JSON = range(11)
VECTOR = 0x14

DatumValue = int | float | bytes | str | None


class Datum(NamedTuple):
    """A decoded datum.

    `value` is None, int (03 04 07 08 09), float (05), bytes (01 02; 14: its raw body), or text (06
    decimal digits, 0a JSON).
    """

    flag: int
    value: DatumValue


def decode_datum(data: bytes | memoryview, pos: int = 0) -> tuple[Datum, int]:
    """Read one datum at `pos`; returns `(datum, position after it)`.

    Raises CodecError with the offset.
    """
    if pos >= len(data):
        raise CodecError("a datum is missing", pos)
    flag = data[pos]
    pos += 1
    value: DatumValue
    if flag == VARINT:
        value, pos = decode_varint(data, pos)
    elif flag == UVARINT:
        value, pos = decode_uvarint(data, pos)
    elif flag == COMPACT:
        length, pos = decode_varint(data, pos)
        if not 0 <= length <= len(data) - pos:
            raise CodecError(f"byte string of {length} bytes, {len(data) - pos} are left", pos)
        value, pos = bytes(data[pos : pos + length]), pos + length
    elif flag == NIL:
        value = None
    elif flag == FLOAT:
        value, pos = decode_float(data, pos)
    elif flag == DECIMAL:
        value, pos = decode_decimal(data, pos)
    elif flag == JSON:
        value, pos = decode_json(data, pos)
    elif flag == BYTES:
        value, pos = decode_bytes(data, pos)
    elif flag in (INT, DURATION):
        value, pos = decode_int(data, pos)
    elif flag == UINT:
        value, pos = decode_uint(data, pos)
    elif flag == VECTOR:
        if len(data) < pos + 4 or len(data) < pos + 4 + 4 * (
            count := unpack_from("<I", data, pos)[0]
        ):
            raise CodecError("a vector is cut off", pos)
        value, pos = bytes(data[pos : pos + 4 + 4 * count]), pos + 4 + 4 * count
    else:
        raise CodecError(f"datum flag 0x{flag:02x} is unknown", pos - 1)
    return Datum(flag, value), pos


def skip_datum(data: bytes | memoryview, pos: int) -> int:
    """Position after the datum at `pos`, without building JSON text."""
    if pos < len(data) and data[pos] == JSON:
        return pos + 1 + json_size(data, pos + 1)
    return decode_datum(data, pos)[1]


def encode_datum(datum: Datum) -> bytes:
    """Return the bytes of a datum.

    Decimal values are text (their digits decide precision and fraction), JSON values text.
    """
    flag, value = datum
    head = bytes((flag,))
    if flag == NIL:
        return head
    if flag == VARINT and isinstance(value, int):
        return head + encode_varint(value)
    if flag == UVARINT and isinstance(value, int):
        return head + encode_uvarint(value)
    if flag == COMPACT and isinstance(value, bytes):
        return head + encode_varint(len(value)) + value
    if flag == FLOAT and isinstance(value, float | int):
        return head + encode_float(value)
    if flag == DECIMAL and isinstance(value, str):
        return head + encode_decimal(value)
    if flag == JSON and isinstance(value, str):
        return head + encode_json(value)
    if flag == BYTES and isinstance(value, bytes):
        return head + encode_bytes(value)
    if flag in (INT, DURATION) and isinstance(value, int):
        return head + encode_int(value)
    if flag == UINT and isinstance(value, int):
        return head + encode_uint(value)
    if flag == VECTOR and isinstance(value, bytes):
        return head + value
    raise CodecError(f"datum flag 0x{flag:02x} can't hold {type(value).__name__}")
