r"""Write JSON from Arrow columns, whole columns at a time.

Bytes of text that aren't UTF-8, which TiDB takes where it doesn't check, have no place in JSON.
Lossless, byte e9 is the escape `\udce9`, which no text has: Python's `surrogateescape` reverses it.
As TiCDC it is U+FFFD.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import data_of, escape_bytes, invalid_utf8_mask, join
from sluice.etl.changes.messages.message import BINARY

NULL = b"null"

_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
# the backslash first, for it is in what replaces the others
_ESCAPES = (
    (b"\\", b"\\\\"),
    (b'"', b'\\"'),
    *((bytes((code,)), _SHORT.get(code, b"\\u%04x" % code)) for code in range(32)),
)
_ESCAPED_BYTES = np.zeros(256, np.bool_)
_ESCAPED_BYTES[[byte[0] for byte, _ in _ESCAPES]] = True
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def json_string(text: str, *, lossless: bool = True) -> bytes:
    """Return a JSON string of text with surrogate escapes for bytes that aren't UTF-8."""
    if _NOT_UTF8.search(text):
        if lossless:
            return json.dumps(text).encode()
        text = _NOT_UTF8.sub("\ufffd", text)
    return json.dumps(text, ensure_ascii=False).encode()


def text_strings(array: pa.Array, *, lossless: bool) -> pa.LargeBinaryArray:
    """Return a JSON string of each text; nulls stay null."""
    raw = array.cast(BINARY)
    broken = invalid_utf8_mask(array)
    if broken is None:
        return _quoted(_escaped(raw))
    mask = pc.fill_null(broken, fill_value=False)
    whole = pc.if_else(mask, pa.scalar(b"", BINARY), raw)
    singly = pa.array(
        [
            json_string(value.decode("utf-8", "surrogateescape"), lossless=lossless)
            for value in raw.filter(mask).to_pylist()
        ],
        BINARY,
    )
    return pc.replace_with_mask(_quoted(_escaped(whole)), mask, singly)


def latin1_strings(array: pa.Array) -> pa.LargeBinaryArray:
    """Return a JSON string of each value of bytes, a character of Latin-1 for each byte."""
    raw = array.cast(BINARY)
    offsets, data = data_of(raw)
    high = data >= 0x80
    ends = np.concatenate(([0], np.cumsum(1 + high)))
    encoded = np.empty(int(ends[-1]), np.uint8)
    encoded[ends[1:] - 1] = np.where(high, 0x80 | data & 0x3F, data)
    encoded[ends[1:][high] - 2] = 0xC0 | data[high] >> 6
    text = pa.LargeBinaryArray.from_buffers(
        BINARY, len(raw), [None, pa.py_buffer(ends[offsets]), pa.py_buffer(encoded)]
    )
    return _where_valid(raw, _quoted(_escaped(text)))


def base64_strings(array: pa.Array) -> pa.LargeBinaryArray:
    """Return a JSON string of each value of bytes, in base64; nulls stay null."""
    return pa.array(
        [
            None if value is None else b'"' + base64.b64encode(value) + b'"'
            for value in array.cast(BINARY).to_pylist()
        ],
        BINARY,
    )


def plain_strings(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return a JSON string of each text in which nothing needs an escape; nulls stay null."""
    return _quoted(array)


def float_digits(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the shortest decimals that read back alike, without an exponent; nulls stay null."""
    kind = np.float32 if pa.types.is_float32(array.type) else np.float64
    return pa.array(
        [
            None
            if value is None
            else np.format_float_positional(kind(value), unique=True, trim="-").encode()
            for value in array.to_pylist()
        ],
        BINARY,
    )


def float_numbers(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the shortest JSON numbers that read back alike; nulls stay null."""
    kind = np.float32 if pa.types.is_float32(array.type) else np.float64
    return pa.array(
        [None if value is None else str(kind(value)).encode() for value in array.to_pylist()],
        BINARY,
    )


def by_distinct(array: pa.Array, encode: Callable[[Any], bytes | None]) -> pa.LargeBinaryArray:
    """Return what `encode` makes of each different value once; nulls stay null."""
    coded = array.dictionary_encode()
    made = [encode(value) for value in coded.dictionary.to_pylist()]
    return pa.array(made, BINARY).take(coded.indices)


def objects(
    fields: Sequence[tuple[str, pa.LargeBinaryArray | bytes]], count: int
) -> pa.LargeBinaryArray:
    """Return a JSON object for each row; a null field is `null`."""
    parts: list[pa.LargeBinaryArray | bytes] = []
    constant = b"{"
    for number, (name, value) in enumerate(fields):
        constant += (b"," if number else b"") + json_string(name) + b":"
        if isinstance(value, bytes):
            constant += value
        else:
            parts += [constant, pc.fill_null(value, pa.scalar(NULL, BINARY))]
            constant = b""
    return row_texts(*parts, constant + b"}", count=count)


def changed_objects(
    fields: Sequence[tuple[str, pa.LargeBinaryArray, pa.BooleanArray]], count: int
) -> pa.LargeBinaryArray:
    """Return a JSON object for each row, of the fields (name, value, whether it is there)."""
    nothing = pa.scalar(b"", BINARY)
    parts = [
        pc.if_else(
            there,
            join(b"," + json_string(name) + b":", pc.fill_null(value, pa.scalar(NULL, BINARY))),
            nothing,
        )
        for name, value, there in fields
    ]
    found = row_texts(*parts, count=count)
    return join(b"{", pc.binary_replace_slice(found, 0, 1, b""), b"}")


def row_texts(*parts: pa.LargeBinaryArray | bytes, count: int) -> pa.LargeBinaryArray:
    """Return the parts joined row by row, also where all are constants."""
    if any(isinstance(part, pa.Array) for part in parts):
        return join(*parts)
    return pa.array([b"".join(parts)] * count, BINARY)


def _escaped(raw: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    _, values = data_of(raw)
    return escape_bytes(raw, _ESCAPES) if _ESCAPED_BYTES[values].any() else raw


def _quoted(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return join(b'"', array, b'"')


def _where_valid(array: pa.Array, text: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    if not array.null_count:
        return text
    return pc.if_else(array.is_valid(), text, pa.scalar(None, BINARY))
