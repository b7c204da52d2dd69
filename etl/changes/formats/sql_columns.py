"""Write Arrow columns as SQL: literals, and conditions that compare rows with them, one a value.

Apart from `sluice.etl.changes.formats.sql_text`, which loads no Arrow: a command that only reads a
checkpoint doesn't wait for it.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.tidb import column_types
from sluice.tidb.codec.float import format_float
from sluice.tidb.schema import Column

BYTEWISE_KINDS = ("text", "enum", "set")
"""Kinds of columns whose values have a collation: they are compared byte for byte."""
_LONG_VALUE_BYTES = 4096  # bytes
_LONG_DOCUMENT_BYTES = 256 * 2**10
"""Size of a JSON document from which on a digest is compared.

A digest finds only what the server writes as TiDB does, which MySQL doesn't always.
"""
# Text behind it is what the server makes of the document. MariaDB, where JSON is text, passes such
# comments over.
_AS_DOCUMENT = b"/*!50708 CAST(CONVERT(CAST(*/", b"/*!50708 AS JSON) USING utf8mb4) AS BINARY)*/"
_TIMES = {"date", "datetime", "timestamp", "time"}  # digits, signs, dots and colons only


def join(
    *parts: pa.Array | bytes, separator: bytes = b"", null: bytes | None = None
) -> pa.LargeBinaryArray:
    """Return the parts (large binary arrays or constants) joined row by row.

    A null anywhere makes the row null, or reads as `null`.
    """
    large = [
        part if isinstance(part, pa.Array) else pa.scalar(part, pa.large_binary()) for part in parts
    ]
    handling = (
        {"null_handling": "emit_null"}
        if null is None
        else {"null_handling": "replace", "null_replacement": null}
    )
    return pc.binary_join_element_wise(*large, pa.scalar(separator, pa.large_binary()), **handling)


def data_of(array: pa.LargeBinaryArray | pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64[n+1], bytes uint8) of a large binary or string array.

    Both start at its first value.
    """
    _, offsets_buffer, data = array.buffers()
    if offsets_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int64, len(array) + 1, array.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    values = (
        np.frombuffer(data, np.uint8, last - first, first)
        if data is not None
        else np.zeros(0, np.uint8)
    )
    return offsets - first, values


def escape_bytes(array: pa.Array, escapes: Sequence[tuple[bytes, bytes]]) -> pa.LargeBinaryArray:
    """Return `array` as large binary with each single byte of `escapes` replaced, in that order.

    `array`: large string or binary. Columns without such bytes, nearly all, come back untouched.
    """
    result = array.cast(pa.large_binary())
    _, values = data_of(result)
    if len(values) == 0:
        return result
    plain = values.tobytes()  # bytes.find runs at memory speed
    for byte, replacement in escapes:
        if plain.find(byte) >= 0:
            result = pc.replace_substring(result, pattern=byte, replacement=replacement)
    return result


def hex_column(array: pa.Array) -> pa.LargeBinaryArray:
    """Write each value of a binary or string array as upper-case hex digits; nulls stay null."""
    array = array.cast(pa.large_binary())
    offsets, values = data_of(array)
    digits = binascii.hexlify(values.tobytes()).upper()
    validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    if validity is not None and array.null_count:
        validity = pa.array(np.asarray(pc.is_valid(array)), pa.bool_()).buffers()[1]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(array),
        [validity, pa.py_buffer((offsets * 2).tobytes()), pa.py_buffer(digits)],
    )


def invalid_utf8_mask(array: pa.Array) -> pa.BooleanArray | None:
    """Return which values of a text column aren't utf-8; None if all are.

    TiDB takes such bytes where it doesn't check.
    """
    raw = array.cast(pa.large_binary())
    try:
        raw.cast(pa.large_string())
        return None
    except pa.ArrowInvalid:
        return pa.array([_is_invalid_utf8(value) for value in raw.to_pylist()])


def display_text(array: pa.Array, at: int) -> Any:
    r"""Return a value for people to read; bytes of text that aren't utf-8 as ``\xe9``."""
    if array.type != pa.large_string():
        return array[at].as_py()
    raw = array.slice(at, 1).cast(pa.large_binary())[0].as_py()
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def _is_invalid_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
        return False
    except UnicodeDecodeError:
        return True


def number_text(array: pa.Array) -> pa.LargeStringArray:
    """Return integers and floats as text that reads back as the same value.

    FLOATs that TiDB itself shows with six digits only (below 1e-15, from 1e15 on) don't: the
    downstream gets what TiDB's result sets have
    (docs/decisions/0066-float-shown-with-six-digits.md).
    """
    if not pa.types.is_float32(array.type):
        return array.cast(pa.large_string())
    size = pc.abs(array)
    rounded = pc.fill_null(
        pc.and_(
            pc.or_(pc.less(size, 1e-15), pc.greater_equal(size, 1e15)), pc.not_equal(array, 0.0)
        ),
        fill_value=False,
    )
    if pc.any(rounded).as_py():
        shown = [np.float32(format_float(value)) for value in array.filter(rounded).to_pylist()]
        array = pc.replace_with_mask(array, rounded, pa.array(shown, pa.float32()))
    # As the double it equals: the shortest text of FLT_MAX is above FLT_MAX and servers refuse it.
    return array.cast(pa.float64()).cast(pa.large_string())


def year_text(array: pa.Array) -> pa.LargeStringArray:
    """Write years as four digits: '0' would be read as the year 2000."""
    return pc.utf8_lpad(array.cast(pa.large_string()), 4, "0")


def literal_column(array: pa.Array, column: Column) -> pa.LargeBinaryArray:
    """Return SQL literals for comparing with `column`, one a value; NULL for nulls."""
    kind = column.kind
    if kind in ("int", "bit"):
        text = number_text(array).cast(pa.large_binary())
    elif kind in ("float", "double"):
        plain = number_text(array).cast(pa.large_binary())
        text = pc.if_else(pc.match_substring(plain, "e"), plain, join(plain, b"e0"))
    elif kind == "decimal":
        text = array.cast(pa.large_binary())  # in quotes it would be compared as a double
    elif kind == "year":
        text = _quoted(year_text(array).cast(pa.large_binary()))
    elif kind == "binary":
        # An empty 0x is no literal, x'' is.
        text = join(b"x'", hex_column(array), b"'")
    elif kind in _TIMES:
        text = _quoted(array.cast(pa.large_binary()))
    else:
        text = _text_literals(array)
    return pc.fill_null(text, pa.scalar(b"NULL", pa.large_binary()))


def _quoted(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return join(b"'", array, b"'")


def _text_literals(array: pa.Array) -> pa.LargeBinaryArray:
    if (broken := invalid_utf8_mask(array)) is not None:
        whole = pc.if_else(broken, pa.scalar(b"", pa.large_binary()), array.cast(pa.large_binary()))
        return pc.if_else(broken, join(b"x'", hex_column(array), b"'"), _text_literals(whole))
    quoted = _quoted(escape_bytes(array, ((b"'", b"''"),)))
    plain = data_of(array.cast(pa.large_binary()))[1].tobytes()
    if b"\\" not in plain and b"\0" not in plain:
        return quoted
    raw = array.cast(pa.large_binary())
    special = pc.or_(pc.match_substring(raw, b"\\"), pc.match_substring(raw, b"\0"))
    return pc.if_else(
        pc.fill_null(special, fill_value=False),
        join(b"_utf8mb4 x'", hex_column(array), b"'"),
        quoted,
    )


def key_conditions(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Return a condition a row, `(a=1 AND b='x' AND <b's bytes>='x')`.

    It is equality as a key of the column sees it, so that the key is used, and of text byte for
    byte, whatever collation the downstream's column has. FLOAT(M,D) and DOUBLE(M,D) are equal when
    rounded, within a range in which the key is used.
    """
    parts = []
    for column, array in zip(columns, arrays, strict=True):
        if is_rounded(column):
            parts.append(near_key_conditions(column, array))
            continue
        literals = literal_column(array, column)
        same = join(quote_name(column.name).encode() + b"=", literals)
        parts.append(
            _and_bytewise(same, column, array, literals, b"=")
            if column.kind in BYTEWISE_KINDS
            else same
        )
    return join(b"(", join(*parts, separator=b" AND "), b")")


def _and_bytewise(
    same: pa.Array, column: Column, array: pa.Array, literals: pa.Array, operator: bytes
) -> pa.LargeBinaryArray:
    """Return `same`, and the same bytes besides.

    What isn't utf-8 has no collation: only its bytes are compared, as they are stored.
    """
    both = join(same, b" AND " + bytes_of(column) + operator, literals)
    if (broken := invalid_utf8_mask(array)) is None:
        return both
    return pc.if_else(
        broken,
        join(b"CAST(" + quote_name(column.name).encode() + b" AS BINARY)" + operator, literals),
        both,
    )


def bytes_of(column: Column) -> bytes:
    """Return an expression for what a column of text holds, as the bytes of its utf-8."""
    return b"CAST(CONVERT(" + quote_name(column.name).encode() + b" USING utf8mb4) AS BINARY)"


def row_conditions(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Return a condition a row that is true for rows with exactly these values, NULLs included.

    Text is compared byte for byte on top of its collation: without a key, 'a' and 'A' are different
    rows. DOUBLE and FLOAT are compared as the number. Long values are compared by their SHA-256, so
    that the statement stays short.
    """
    parts = []
    for column, array in zip(columns, arrays, strict=True):
        if column.kind not in ("text", "json", "binary"):
            parts.append(_equal(column, array))
            continue
        most = _LONG_DOCUMENT_BYTES if column.kind == "json" else _LONG_VALUE_BYTES
        long = pc.fill_null(pc.greater(pc.binary_length(array), most), fill_value=False)
        if pc.any(long).as_py():
            short = pc.if_else(long, pa.scalar(None, array.type), array)
            parts.append(pc.if_else(long, _same_digest(column, array, long), _equal(column, short)))
        else:
            parts.append(_equal(column, array))
    return join(*parts, separator=b" AND ")


def is_rounded(column: Column) -> bool:
    """Return whether servers round what comes: FLOAT(M,D) and DOUBLE(M,D).

    Each does it in its own way, so that the numbers that they hold differ in the last bits. MySQL
    9.7 makes -0.0010000000000000009 of -0.001.
    """
    return column.kind in ("float", "double") and column.decimal >= 0


def _rounded_equal(column: Column, literals: pa.Array, operator: bytes) -> pa.LargeBinaryArray:
    digits = b",%d)" % column.decimal
    head = b"ROUND(" + quote_name(column.name).encode() + digits + operator + b"ROUND("
    return join(head, literals, digits)


def near_key_conditions(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    """Return a condition a row for a key that `is_rounded`.

    Its range, by which the key is used, takes in every number that a server may have made of it.
    """
    numbers = np.asarray(array.fill_null(0))
    width = np.maximum(4 * np.spacing(np.abs(numbers)), 0.5 * 10.0**-column.decimal)
    wide = replace(column, tp=column_types.DOUBLE)
    low, high = (
        literal_column(
            pa.array(numbers.astype(float) + edge, mask=~np.asarray(array.is_valid())), wide
        )
        for edge in (-width, width)
    )
    same = _rounded_equal(column, literal_column(array, column), b"=")
    head = quote_name(column.name).encode() + b" BETWEEN "
    return join(head, low, b" AND ", high, b" AND ", same)


def _equal(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    literals = literal_column(array, column)
    if is_rounded(column):
        return _rounded_equal(column, literals, b"<=>")
    same = join(quote_name(column.name).encode() + b"<=>", literals)
    # some servers have a type of its own for it, which they write in their own way
    if column.kind == "json":
        before, behind = _AS_DOCUMENT
        return join(bytes_of(column) + b"<=>" + before, literals, behind)
    return (
        _and_bytewise(same, column, array, literals, b"<=>")
        if column.kind in BYTEWISE_KINDS
        else same
    )


def _same_digest(column: Column, array: pa.Array, long: pa.BooleanArray) -> pa.LargeBinaryArray:
    name = quote_name(column.name).encode()
    conditions: list[bytes | None] = []
    for value, is_long in zip(array.cast(pa.large_binary()), long.to_pylist(), strict=True):
        if not is_long:
            conditions.append(None)
            continue
        as_stored = column.kind == "binary" or _is_invalid_utf8(value.as_py())
        content = b"CAST(%b AS BINARY)" % name if as_stored else b"CONVERT(%b USING utf8mb4)" % name
        conditions.append(
            b"SHA2(%b,256)<=>'%b'"
            % (content, hashlib.sha256(value.as_buffer()).hexdigest().encode())
        )
    return pa.array(conditions, pa.large_binary())
