"""Datums and column values: what a datum means in a column of a given type, and back.

The values, here and in the columns of `sluice.tidb.rows`:

    int, year            int (unsigned columns 0 .. 2^64-1)
    bit                  int, the bits as an unsigned number
    float, double        float, FLOAT rounded to float32
    decimal              text with the stored number of fraction digits
    text, binary         bytes in a row; TiDB stores all character sets but `binary` as utf-8
    date ... timestamp   text in UTC, `YYYY-MM-DD[ HH:MM:SS[.f*fsp]]`
    time                 text `[-]HH:MM:SS[.f*fsp]`
    enum, set            text of the element, of the elements with commas; index 0 is ""
    json                 TiDB's text form
"""

import struct
from decimal import Decimal, InvalidOperation
from typing import Any

from sluice.tidb import column_types
from sluice.tidb.codec import lenient_datetimes as spelled
from sluice.tidb.codec.binary_json import decode_json, encode_json
from sluice.tidb.codec.datum import (
    COMPACT,
    DECIMAL,
    DURATION,
    FLOAT,
    JSON,
    NIL,
    UVARINT,
    VARINT,
    VECTOR,
    Datum,
    encode_datum,
)
from sluice.tidb.codec.decimal import encode_decimal
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.times import (
    ZERO_DATE,
    format_duration,
    format_time,
    pack_time,
    parse_duration,
)
from sluice.tidb.schema import Column

_MASK = (1 << 64) - 1

FLAGS: dict[str, tuple[int, ...]] = {
    "int": (VARINT, UVARINT),
    "year": (VARINT, UVARINT),
    "bit": (UVARINT,),
    "float": (FLOAT,),
    "double": (FLOAT,),
    "decimal": (DECIMAL,),
    "text": (COMPACT,),
    "binary": (COMPACT,),
    "date": (UVARINT,),
    "datetime": (UVARINT,),
    "timestamp": (UVARINT,),
    "time": (VARINT, DURATION),
    "enum": (UVARINT,),
    "set": (UVARINT,),
    "json": (JSON,),
    "vector": (VECTOR,),
    "null": (),
}
"""Datum flags a column of a kind may have besides NIL; DURATION only in clustered handles."""


def from_datum(column: Column, datum: Datum) -> Any:
    """Return the value of a datum in `column`.

    Raises CodecError when the flag or the value can't be one of its type.
    """
    flag, value = datum
    if flag == NIL:
        return None
    kind = column.kind
    if flag not in FLAGS.get(kind, ()):
        raise CodecError(
            f"column {column.name!r} ({kind or f'type {column.tp}'}) has a datum with flag"
            f" 0x{flag:02x}"
        )
    if isinstance(value, int):
        return _from_int(column, kind, value)
    if kind == "float" and isinstance(value, float):
        return _to_float32(column, value)
    return value


def _to_float32(column: Column, value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError as error:
        raise CodecError(
            f"column {column.name!r} is a FLOAT and has the value {value!r}"
        ) from error
    return rounded


def _from_int(column: Column, kind: str, value: int) -> int | str:
    if kind in ("int", "year"):
        if column.unsigned and kind == "int":
            return value & _MASK
        if value >= 1 << 63:
            raise CodecError(f"column {column.name!r} is signed and has the value {value}")
        return value
    if kind == "bit":
        return value
    if kind == "enum":
        if value > len(column.elems):
            raise CodecError(
                f"column {column.name!r} has {len(column.elems)} elements and the index {value}"
            )
        return column.elems[value - 1] if value else ""
    if kind == "set":
        return set_text(column, value)
    if kind == "time":
        return format_duration(value, column.fsp)
    return format_time(value, None if kind == "date" else column.fsp)


def set_text(column: Column, bits: int) -> str:
    """Return the names of a SET's bits, in order, with commas.

    Raises CodecError for a bit without a name.
    """
    if bits >> len(column.elems):
        raise CodecError(
            f"column {column.name!r} has {len(column.elems)} elements and the bits {bits:#x}"
        )
    return ",".join(name for i, name in enumerate(column.elems) if bits >> i & 1)


def to_datum(column: Column, value: Any, *, in_handle: bool = False) -> bytes:
    """Encode a value of `column` as the datum that TiDB writes.

    Text columns take str or bytes.
    """
    if value is None:
        return bytes((NIL,))
    kind = column.kind
    if kind == "int":
        return encode_datum(Datum(UVARINT if column.unsigned else VARINT, value))
    if kind == "year":
        return encode_datum(Datum(VARINT, value))
    if kind == "bit":
        return encode_datum(Datum(UVARINT, value))
    if kind in ("float", "double"):
        return encode_datum(Datum(FLOAT, value))
    if kind == "decimal":
        if column.flen > 0 and column.decimal >= 0:
            return bytes((DECIMAL,)) + encode_decimal(value, column.flen, column.decimal)
        return encode_datum(Datum(DECIMAL, str(value)))
    if kind in ("text", "binary"):
        return encode_datum(Datum(COMPACT, value.encode() if isinstance(value, str) else value))
    if kind in ("date", "datetime", "timestamp"):
        return encode_datum(Datum(UVARINT, pack_time(value)))
    if kind == "time":
        return encode_datum(Datum(DURATION if in_handle else VARINT, parse_duration(value)))
    if kind == "enum":
        return encode_datum(Datum(UVARINT, column.elems.index(value) + 1 if value else 0))
    if kind == "set":
        names = value.split(",") if value else []
        return encode_datum(Datum(UVARINT, sum(1 << column.elems.index(name) for name in names)))
    if kind == "json":
        return encode_datum(Datum(JSON, value))
    if kind == "vector":
        return encode_datum(Datum(VECTOR, value))
    raise CodecError(f"column {column.name!r} has type {column.tp}, which is unknown")


def missing_value(column: Column) -> Any:
    """Return the value of a column that a row doesn't hold.

    It is the column's origin default, else NULL if it may be, else the type's zero. Text and binary
    come as bytes.
    """
    default = column.origin_default
    if default is None:
        return _zero(column) if column.not_null else None
    try:
        return parse_text(column, default)
    except (ValueError, InvalidOperation, CodecError) as error:
        raise CodecError(
            f"column {column.name!r} has the origin default {default!r}: {error}"
        ) from error


def parse_text(column: Column, default: bytes | str) -> Any:
    """Return the value that a text, such as a default, has in `column`.

    Raises ValueError, InvalidOperation, CodecError.
    """
    kind = column.kind
    if kind == "bit":
        return int.from_bytes(default.encode() if isinstance(default, str) else default, "big")
    if kind in ("text", "binary"):
        raw = default.encode("utf-8", "surrogateescape") if isinstance(default, str) else default
        return _padded(column, raw)
    text = default.decode() if isinstance(default, bytes) else default
    if kind == "int":
        return int(Decimal(text))
    if kind == "year":
        return spelled.parse_year(text)
    if kind in ("float", "double"):
        return _to_float32(column, float(text)) if kind == "float" else float(text)
    if kind == "decimal":
        return f"{Decimal(text):.{max(0, column.decimal)}f}"
    if kind in ("date", "datetime", "timestamp"):
        return format_time(
            pack_time(spelled.parse_moment(text)), None if kind == "date" else column.fsp
        )
    if kind == "time":
        return format_duration(parse_duration(spelled.parse_duration(text)), column.fsp)
    return decode_json(encode_json(text))[0] if kind == "json" else text


def _padded(column: Column, raw: bytes) -> bytes:
    if column.kind != "binary" or column.flen < 0:
        return raw
    # TiDB keeps bytes that are no UTF-8 as U+FFFD, and cuts what is then too long.
    raw = raw[: column.flen]
    return raw.ljust(column.flen, b"\0") if column.tp == column_types.CHAR else raw


def _zero(column: Column) -> Any:
    match column.kind:
        case "int" | "year" | "bit":
            return 0
        case "float" | "double":
            return 0.0
        case "decimal":
            return f"{Decimal(0):.{max(0, column.decimal)}f}"
        case "text" | "binary":
            return _padded(column, b"")
        case "date":
            return ZERO_DATE
        case "datetime" | "timestamp":
            return format_time(0, column.fsp)
        case "time":
            return format_duration(0, column.fsp)
        case "enum":
            return column.elems[0] if column.elems else ""
        case "set":
            return ""
        case "json":
            return "null"
    return None
