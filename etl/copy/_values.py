"""Convert fields of a dump to Arrow columns, in the types and texts of `sluice.tidb.rows`.

What stands in a dump is TiDB's own text of a value, so nearly all of it is taken as it is: quotes
and escapes go, hex digits become bytes, numbers are read. Whole columns at a time; what differs
from value to value within a column (hex beside quoted text) goes value by value, which nothing
that Dumpling writes needs.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import Signal
from sluice.etl.copy._fields import (
    BACKSLASH,
    Bytes,
    FieldPositions,
    Ints,
    Mask,
    active_escapes,
    quoted,
    special_byte_table,
)
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.column_types import FLAG_ZEROFILL
from sluice.tidb.schema import Column

_ESCAPE_TABLE = np.arange(256, dtype=np.uint8)
for _letter, _byte in zip(b"0bnrtZ", b"\0\b\n\r\t\x1a", strict=True):
    _ESCAPE_TABLE[_letter] = _byte
_X, _N, _SINGLE = ord("x"), ord("N"), ord("'")
_NUMBERS = ("int", "year", "float", "double")
_UNQUOTED_KINDS = (*_NUMBERS, "decimal")
_TIMES = ("date", "datetime", "timestamp", "time")
_ALLOWED = {
    kind: np.isin(np.arange(256), list(characters))
    for kind, characters in (
        ("decimal", b"0123456789.-"),
        *((kind, b"0123456789-:. ") for kind in _TIMES),
    )
}
_MAX_SHOWN_CHARS = 60


class ValueRefused(Signal):
    """A value that can't be one of its column. `row` counts from 0."""

    def __init__(self, row: int, column: str, what: str) -> None:
        super().__init__(what)
        self.row = row
        self.column = column
        self.what = what


@dataclass(frozen=True, slots=True)
class ValueSyntax:
    """The spelling of values in a file.

    `quote`: around strings, -1 for none. `null`: how NULL is spelled. `hex`: bytes may come as
    x'...'. `letters`: what Dumpling writes behind a backslash; empty: nothing is escaped, a quote
    inside is doubled. `escaped`: what never stands in a value by itself.
    """

    quote: int
    null: bytes
    hex: bool = False
    letters: bytes = b""
    escaped: bytes = b""


SQL_SYNTAX = ValueSyntax(_SINGLE, b"NULL", hex=True, letters=b"0nr\\'\"Z", escaped=b"\0\n\r'\"\x1a")
SQL_DOUBLED_SYNTAX = ValueSyntax(_SINGLE, b"NULL", hex=True)


def csv_syntax(delimiter: bytes, separator: bytes, null: bytes, *, escapes: bool) -> ValueSyntax:
    """Return the spelling of values in a CSV file with this delimiter (b"" for none)."""
    quote = delimiter[0] if delimiter else -1
    if not escapes:
        return ValueSyntax(quote, null)
    special = delimiter[:1] or separator[:1]
    return ValueSyntax(quote, null, letters=b"0nr\\" + special, escaped=b"\0\n\r" + special)


def column_array(
    column: Column, fields: FieldPositions, index: int, spelling: ValueSyntax
) -> pa.Array:
    """Return the values of the field `index` of all rows, as `column` has them.

    Raises ValueRefused.
    """
    start, end = (
        np.ascontiguousarray(fields.start[:, index]),
        np.ascontiguousarray(fields.end[:, index]),
    )
    data = fields.data
    null = _nulls(data, start, end, spelling.null)
    first = data[np.minimum(start, len(data) - 1)]
    quoted = (
        (first == spelling.quote) & (end > start)
        if spelling.quote >= 0
        else np.zeros(len(start), np.bool_)
    )
    hexed = _hex_mask(data, start, end, first, spelling) & ~null
    row = _unclosed(data, start, end, quoted | hexed, spelling.quote)
    if row is not None:
        raise ValueRefused(row, column.name, "the quotes around it aren't closed")
    bare = ~(quoted | hexed | null)
    if spelling.quote >= 0 and column.kind not in _UNQUOTED_KINDS and bare.any():
        raise ValueRefused(
            int(np.flatnonzero(bare)[0]), column.name, f"a {column.kind} without quotes around it"
        )
    raw = _gather(data, start + quoted + 2 * hexed, end - (quoted | hexed), null)
    if hexed.any():
        raw = _unhexed(raw, hexed, null)
        if not (hexed | null).all():
            raw = _decode_mixed(raw, hexed, spelling)
    else:
        raw = _unescaped(column, raw, spelling)
    return typed_array(column, raw)


def _nulls(data: Bytes, start: Ints, end: Ints, text: bytes) -> Mask:
    null: Mask = end - start == len(text)
    if null.any():
        for n, byte in enumerate(text):
            null &= data[np.minimum(start + n, len(data) - 1)] == byte
    return null


def _hex_mask(data: Bytes, start: Ints, end: Ints, first: Bytes, spelling: ValueSyntax) -> Mask:
    if not spelling.hex:
        return np.zeros(len(start), np.bool_)
    found: Mask = (first == _X) & (end - start >= 3)
    if found.any():
        found &= data[np.minimum(start + 1, len(data) - 1)] == _SINGLE
    return found


def _unclosed(data: Bytes, start: Ints, end: Ints, quoted: Mask, quote: int) -> int | None:
    """Return the first row whose value doesn't end with the quote that it begins with."""
    if not quoted.any():
        return None
    open_ended = quoted & ((end - start < 2) | (data[np.maximum(end - 1, 0)] != quote))
    return int(np.flatnonzero(open_ended)[0]) if open_ended.any() else None


def _gather(data: Bytes, start: Ints, end: Ints, null: Mask) -> pa.LargeBinaryArray:
    """Return the bytes from `start` to `end`, in one pass of Arrow's own copy.

    The block is seen as gap, value, gap, value, ... of which the values are taken.
    """
    count = len(start)
    end = np.where(null, start, end)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[:1] = start[:1] if count else 0
    offsets[1::2], offsets[2::2] = start, end
    both = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        2 * count,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))],
    )
    taken = both.take(pa.array(np.arange(1, 2 * count, 2)))
    return _binary(taken, null)


def _binary(array: pa.Array, null: Mask) -> pa.LargeBinaryArray:
    _, offsets, data = array.buffers()
    validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(array),
        [validity, offsets, data if data is not None else pa.py_buffer(b"")],
    )


def _parts(array: pa.LargeBinaryArray) -> tuple[pa.Buffer | None, Ints, Bytes]:
    """Return (validity, offsets, bytes) of an array that begins at its buffers' beginning."""
    validity, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int64, len(array) + 1)
    return validity, found, np.frombuffer(data, np.uint8, int(found[-1]))


def _binary_array(
    validity: pa.Buffer | None, offsets: Ints, data: Bytes | bytes
) -> pa.LargeBinaryArray:
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [validity, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)],
    )


def _unescaped(
    column: Column, array: pa.LargeBinaryArray, spelling: ValueSyntax
) -> pa.LargeBinaryArray:
    """Return the values without the bytes that only give the next one a meaning."""
    if not spelling.letters and spelling.quote < 0:
        return array
    validity, offsets, data = _parts(array)
    signs = b"\\" + spelling.escaped if spelling.letters else bytes((spelling.quote,))
    special = np.flatnonzero(special_byte_table(signs)[data])
    if not len(special):
        return array
    at = active_escapes(special[data[special] == BACKSLASH] if spelling.letters else special)
    before = np.searchsorted(at, offsets)
    behind = np.searchsorted(at + 1, offsets)
    if (behind != before).any():  # the last byte of a value means something about the next
        row = max(int(np.flatnonzero(behind != before)[0]) - 1, 0)
        raise ValueRefused(row, column.name, "it ends in the middle of an escaped character")
    wrong = _wrong_escapes(data, special, at, spelling)
    if len(wrong):
        raise _escaped_otherwise(column, offsets, data, int(wrong.min()), spelling)
    if spelling.letters and len(at):
        data = data.copy()
        data[at + 1] = _ESCAPE_TABLE[data[at + 1]]
    keep = np.ones(len(data), np.bool_)
    keep[at] = False
    return _binary_array(validity, offsets - before, data[keep])


def _wrong_escapes(data: Bytes, special: Ints, at: Ints, spelling: ValueSyntax) -> Ints:
    """Return the positions that Dumpling writes in another way.

    It writes some bytes in one way only: these were written by another rule.
    """
    follows = data[at + 1]
    if not spelling.letters:
        unlike: Ints = at[follows != spelling.quote]
        return unlike
    wrong = at[~special_byte_table(spelling.letters)[follows]]
    alone = np.ones(len(data) + 1, np.bool_)
    alone[at + 1] = False
    alone[at] = False
    return np.concatenate((wrong, special[alone[special]]))


def _escaped_otherwise(
    column: Column, offsets: Ints, data: Bytes, place: int, spelling: ValueSyntax
) -> ValueRefused:
    if spelling.letters:
        hint = "if Dumpling was given --escape-backslash=false, set that option here, too"
    else:
        hint = "it was read as one of --escape-backslash=false"
    row = int(np.searchsorted(offsets, place, side="right")) - 1
    shown = quoted(data[place : place + 2].tobytes(), is_shown=not column.mask)
    return ValueRefused(row, column.name, f"Dumpling escapes in another way than {shown}: {hint}")


def _unhexed(array: pa.LargeBinaryArray, hexed: Mask, null: Mask) -> pa.LargeBinaryArray:
    if (hexed | null).all():
        validity, offsets, data = _parts(array)
        odd = (np.diff(offsets) & 1).astype(np.bool_)
        if not odd.any():
            try:
                return _binary_array(validity, offsets // 2, binascii.unhexlify(data.tobytes()))
            except binascii.Error:
                pass
    return pa.array(
        [
            _unhex(row, value) if is_hex else value
            for row, (value, is_hex) in enumerate(zip(array.to_pylist(), hexed))
        ],
        pa.large_binary(),
    )


def _unhex(row: int, value: bytes) -> bytes:
    try:
        return binascii.unhexlify(value)
    except binascii.Error:
        raise ValueRefused(row, "", "it isn't hex") from None


def _decode_mixed(
    array: pa.LargeBinaryArray, hexed: Mask, spelling: ValueSyntax
) -> pa.LargeBinaryArray:
    """Decode an array of which some values came as hex and the others are still escaped."""
    return pa.array(
        [
            value if is_hex or value is None else _decode_value(value, spelling)
            for value, is_hex in zip(array.to_pylist(), hexed, strict=True)
        ],
        pa.large_binary(),
    )


def _decode_value(value: bytes, spelling: ValueSyntax) -> bytes:
    quote = bytes((spelling.quote,))
    if not spelling.letters:
        return value.replace(quote + quote, quote)
    out, at = bytearray(), 0
    while at < len(value):
        if value[at] == BACKSLASH:
            at += 1
            out.append(int(_ESCAPE_TABLE[value[at]]))
        else:
            out.append(value[at])
        at += 1
    return bytes(out)


def typed_array(column: Column, raw: pa.LargeBinaryArray) -> pa.Array:
    """Convert values as TiDB prints them, binary ones as their bytes, to the column's type.

    Raises ValueRefused.
    """
    kind = column.kind
    if kind == "binary":
        return raw
    if kind == "bit":
        return _bits(column, raw)
    if kind in _NUMBERS:
        try:
            return pc.cast(raw.cast(pa.large_string()), arrow_type(column))
        except pa.ArrowInvalid:
            raise _refused(
                column, raw, f"it is no {kind}{' unsigned' if column.unsigned else ''}"
            ) from None
    if kind in _ALLOWED:
        _, offsets, data = _parts(raw)
        wrong = ~_ALLOWED[kind][data]
        empty = np.diff(offsets) == 0
        if raw.null_count:
            empty &= np.asarray(pc.is_valid(raw))
        if wrong.any() or empty.any():
            row = (
                int(np.searchsorted(offsets, np.flatnonzero(wrong)[0], side="right")) - 1
                if wrong.any()
                else int(np.flatnonzero(empty)[0])
            )
            raise _refused_at(column, raw, row, f"it is no {kind}")
    elif kind not in ("text", "enum", "set", "json"):
        raise ValueRefused(0, column.name, f"columns of type number {column.tp} can't be copied")
    texts = pa.LargeStringArray.from_buffers(len(raw), *raw.buffers()[1:], raw.buffers()[0], -1, 0)
    if kind == "decimal" and column.flag & FLAG_ZEROFILL:  # servers fill it up, binlogs don't
        return pc.replace_substring_regex(texts, pattern="^0+([0-9])", replacement=r"\1")
    return texts


def _bits(column: Column, raw: pa.LargeBinaryArray) -> pa.Array:
    validity, offsets, data = _parts(raw)
    size = np.diff(offsets)
    if (size > 8).any():
        raise _refused_at(column, raw, int(np.flatnonzero(size > 8)[0]), "it has more than 64 bits")
    value = np.zeros(len(raw), np.uint64)
    for n in range(int(size.max(initial=0))):
        more = size > n
        byte = data[np.minimum(offsets[:-1] + n, max(len(data) - 1, 0))].astype(np.uint64)
        value = np.where(more, value << np.uint64(8) | byte, value)
    return pa.Array.from_buffers(pa.uint64(), len(raw), [validity, pa.py_buffer(value)])


def _refused(column: Column, raw: pa.LargeBinaryArray, what: str) -> ValueRefused:
    wanted = arrow_type(column)
    for row in range(len(raw)):
        try:
            pc.cast(raw.slice(row, 1).cast(pa.large_string()), wanted)
        except pa.ArrowInvalid:
            return _refused_at(column, raw, row, what)
    return ValueRefused(0, column.name, what)


def _refused_at(column: Column, raw: pa.LargeBinaryArray, row: int, what: str) -> ValueRefused:
    shown = quoted((raw[row].as_py() or b"")[:_MAX_SHOWN_CHARS], is_shown=not column.mask)
    return ValueRefused(row, column.name, f"{what}: {shown}")
