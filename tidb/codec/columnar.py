"""Convert the cells of many rows into one Arrow column, with a kernel for each kind of value.

`sluice.tidb.codec.column_value` lists the kinds. Kernels never raise on bad values: they set the
row in `bad`, put anything in its place, and the scalar decoder reports it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.tidb.codec.column_value import missing_value, set_text
from sluice.tidb.codec.decimal import DIGITS_TO_BYTES, group_digits
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.json_columns import json_texts
from sluice.tidb.codec.times import MAX_HOURS
from sluice.tidb.codec.vectorized import Buffer, Bytes, Cells, Ints, Mask, Words
from sluice.tidb.schema import Column

_TYPES = {
    "year": pa.int64(),
    "bit": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.large_binary(),
    "vector": pa.large_binary(),
}
_D2 = np.array([f"{i:02}" for i in range(100)], "S2").view("u2")
_D3 = np.frombuffer("".join(f"{i:03}" for i in range(1000)).encode(), np.uint8).reshape(1000, 3)
_ZERO = ord("0")
_PLAIN_FRACTION = 6  # with more digits behind the point Arrow prints small numbers as 1E-7
_WORD_DIGITS = 18


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's values."""
    if column.kind == "int":
        return pa.uint64() if column.unsigned else pa.int64()
    return _TYPES.get(column.kind, pa.large_string())


def to_arrow(
    column: Column, buffer: Buffer, cells: Cells | None, count: int, bad: Mask
) -> pa.Array:
    """Return an Arrow array of `count` values.

    `cells` None: no row has the column. Rows without it get `missing_value`.
    """
    kind, array_type = column.kind, arrow_type(column)
    if cells is None:
        return constant(missing_value(column), array_type, count)
    if cells.present is not None:
        cells.null = ~cells.present if cells.null is None else cells.null | ~cells.present
    if cells.null is None:
        array = _KERNELS[kind](column, buffer, cells, bad)
    else:  # where there is no value, the kernel has seen whatever follows
        own = np.zeros(count, np.bool_)
        array = _KERNELS[kind](column, buffer, cells, own)
        bad |= own & ~cells.null
    if cells.present is not None and (default := missing_value(column)) is not None:
        array = pc.if_else(pa.array(cells.present), array, constant(default, array_type, count))
    return array


def constant(value: Any, array_type: pa.DataType, count: int) -> pa.Array:
    """Return `count` times the same value; text may be bytes that aren't utf-8."""
    if value is None:
        return pa.nulls(count, array_type)
    return from_values([value], array_type).take(pa.array(np.zeros(count, np.int64)))


def from_values(values: list[Any], array_type: pa.DataType) -> pa.Array:
    """Build an array of the scalar decoder's values; text isn't checked to be utf-8."""
    if array_type != pa.large_string():
        return pa.array(values, array_type)
    raw = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.large_binary())
    return _as_text(raw)


def _as_text(array: pa.Array) -> pa.Array:
    """View large_binary as large_string, unchecked and without a copy."""
    return pa.LargeStringArray.from_buffers(
        len(array), *array.buffers()[1:], array.buffers()[0], -1, array.offset
    )


def _validity(null: Mask | None) -> pa.Buffer | None:
    return None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))


def _primitive(values: npt.NDArray[Any], array_type: pa.DataType, null: Mask | None) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(array_type, len(values), [_validity(null), data])


def _text(data: Bytes, offsets: Ints, null: Mask | None) -> pa.Array:
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data), _validity(null), -1, 0
    )


def _values(cells: Cells) -> Words:
    return np.zeros(len(cells.start), np.uint64) if cells.value is None else cells.value


def _ints(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    if not (column.kind == "int" and column.unsigned) and cells.unsigned is not None:
        bad |= cells.unsigned & (_values(cells) >> np.uint64(63) != 0)
    return _primitive(_values(cells), arrow_type(column), cells.null)


def _bits(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    return _primitive(_values(cells), pa.uint64(), cells.null)


def _floats(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    bits = buffer.words[cells.start].byteswap()
    top = np.uint64(1 << 63)
    values = np.where(bits & top != 0, bits ^ top, ~bits).view(np.float64)
    if column.kind == "float":
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = values.astype(np.float32)
        wrong = np.isinf(rounded) & ~np.isinf(values)
        if cells.null is not None:
            wrong &= ~cells.null
        bad |= wrong
        return _primitive(rounded, pa.float32(), cells.null)
    return _primitive(values, pa.float64(), cells.null)


def _bytes(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    """Copy the values in one pass of Arrow's own take.

    The buffer is seen as gap, value, gap, value, ... of which the values are taken.
    """
    count = len(cells.start)
    offsets = np.empty(2 * count + 1, np.int64)
    if count:
        offsets[0] = cells.start[0]
    offsets[1::2] = cells.start
    np.add(cells.start, cells.length, out=offsets[2::2])
    both = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.bytes)]
    )
    array = both.take(pa.array(np.arange(1, 2 * count, 2)))
    validity = _validity(cells.null)
    _, taken, data = array.buffers()
    data = pa.py_buffer(b"") if data is None else data
    if column.kind == "binary":
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [validity, taken, data])
    return pa.LargeStringArray.from_buffers(count, taken, data, validity, -1, 0)


def _times(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    """Format times; all texts have one width, so a packed record type lays the digits out."""
    packed, count = _values(cells), len(cells.start)
    ymd = (packed >> np.uint64(41)).astype(np.int64)
    hms = (packed >> np.uint64(24)).astype(np.int64) & 0x1FFFF
    micro = packed.astype(np.int64) & 0xFFFFFF
    month = ymd >> 5
    year = month // 13
    month -= year * 13
    hour, minute, second = hms >> 12, hms >> 6 & 63, hms & 63
    wrong = (year > 9999) | (hour > 23) | (minute > 59) | (second > 59) | (micro > 999_999)
    if wrong.any():
        bad |= wrong
        year, hour, minute = (
            np.where(wrong, 0, year),
            np.where(wrong, 0, hour),
            np.where(wrong, 0, minute),
        )
        second, micro = np.where(wrong, 0, second), np.where(wrong, 0, micro)
    fields = [
        ("century", "u2"),
        ("year", "u2"),
        ("s1", "u1"),
        ("month", "u2"),
        ("s2", "u1"),
        ("day", "u2"),
    ]
    fsp = 0 if column.kind == "date" else column.fsp
    if column.kind != "date":
        fields += [
            ("s3", "u1"),
            ("hour", "u2"),
            ("s4", "u1"),
            ("minute", "u2"),
            ("s5", "u1"),
            ("second", "u2"),
        ]
        if fsp:
            fields += [("s6", "u1"), ("f", "u1" if fsp == 1 else f"{fsp}u1")]
    text = np.empty(count, fields)
    text["century"], text["year"] = _D2[year // 100], _D2[year % 100]
    text["month"], text["day"] = _D2[month], _D2[ymd & 31]
    text["s1"] = text["s2"] = ord("-")
    if column.kind != "date":
        text["hour"], text["minute"], text["second"] = _D2[hour], _D2[minute], _D2[second]
        text["s3"], text["s4"], text["s5"] = ord(" "), ord(":"), ord(":")
        if fsp:
            text["s6"] = ord(".")
            text["f"] = _six_digits(micro)[:, :fsp] if fsp > 1 else _six_digits(micro)[:, 0]
    width = text.dtype.itemsize
    return _text(
        text.view(np.uint8), np.arange(0, count * width + 1, width, dtype=np.int64), cells.null
    )


def _six_digits(values: Ints) -> Bytes:
    out = np.empty((len(values), 6), np.uint8)
    out[:, :3], out[:, 3:] = _D3[values // 1000], _D3[values % 1000]
    return out


def _durations(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    nanos = _values(cells).view(np.int64)
    negative = nanos < 0
    micro = np.abs(nanos) // 1000
    seconds = micro // 1_000_000
    wrong = (seconds >= (MAX_HOURS + 1) * 3600) | (seconds < 0)
    if wrong.any():
        bad |= wrong
        seconds = np.where(wrong, 0, seconds)
    fsp = column.fsp
    grid = np.full((len(nanos), 10 + (fsp + 1 if fsp else 0)), ord(":"), np.uint8)
    hours = seconds // 3600
    grid[:, 0] = ord("-")
    grid[:, 1:4] = _D3[hours]
    grid[:, 5:7] = _D3[seconds // 60 % 60][:, 1:]
    grid[:, 8:10] = _D3[seconds % 60][:, 1:]
    if fsp:
        grid[:, 10] = ord(".")
        grid[:, 11:] = _six_digits(micro - micro // 1_000_000 * 1_000_000)[:, :fsp]
    keep = np.ones(grid.shape, np.bool_)
    keep[:, 0], keep[:, 1] = negative, hours > 99
    return _ragged(grid, keep, cells.null)


def _ragged(grid: Bytes, keep: Mask, null: Mask | None) -> pa.Array:
    """Return the rows of a character grid, only the kept characters."""
    offsets = np.zeros(len(grid) + 1, np.int64)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    return _text(grid[keep], offsets, null)


def _decimals(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    """Format rows of one precision and scale at a time: normally there is only one."""
    count = len(cells.start)
    prefix = (buffer.words[cells.start] & np.uint64(0xFFFF)).astype(np.int64)
    there = None if cells.null is None else ~cells.null
    distinct = np.flatnonzero(np.bincount(prefix if there is None else prefix[there]))
    if len(distinct) == 1 and there is None:
        return _decimals_alike(buffer, cells.start, int(distinct[0]), bad, None)
    order = np.full(count, -1, np.int64)
    chunks, done = [], 0
    for one in distinct:
        rows = (
            np.flatnonzero(prefix == one)
            if there is None
            else np.flatnonzero((prefix == one) & there)
        )
        chunks.append(_decimals_alike(buffer, cells.start[rows], int(one), bad, rows))
        order[rows] = np.arange(done, done + len(rows))
        done += len(rows)
    if not chunks:
        return pa.nulls(count, pa.large_string())
    return pa.concat_arrays(chunks).take(pa.array(order, mask=order < 0))


def _decimals_alike(
    buffer: Buffer, start: Ints, prefix: int, bad: Mask, rows: Ints | None
) -> pa.Array:
    precision, fraction = prefix & 0xFF, prefix >> 8
    negative = buffer.bytes[start + 2] < 0x80
    wrong = np.zeros(len(start), np.bool_)
    groups: list[tuple[int, Ints]] = []
    at = start + 2
    for digits in group_digits(precision, fraction):
        size = DIGITS_TO_BYTES[digits]
        raw = buffer.words[at].byteswap() >> np.uint64(64 - 8 * size)
        if not groups:
            raw ^= np.uint64(0x80 << 8 * (size - 1))
        value: Ints = np.where(negative, raw ^ np.uint64((1 << 8 * size) - 1), raw).astype(np.int64)
        over = value >= 10**digits
        if over.any():
            wrong |= over
            value = np.where(over, 0, value)
        groups.append((digits, value))
        at = at + size
    if wrong.any():
        if rows is None:
            bad |= wrong
        else:
            bad[rows] |= wrong
    if fraction <= _PLAIN_FRACTION and precision - _last_digits(groups) <= _WORD_DIGITS:
        return _decimals_by_arrow(groups, negative, fraction)
    return _decimals_by_digits(groups, negative, precision, fraction)


def _last_digits(groups: list[tuple[int, Ints]]) -> int:
    """Return how many digits the last groups have that go into one word."""
    taken = 0
    for digits, _ in reversed(groups):
        if taken + digits > _WORD_DIGITS:
            break
        taken += digits
    return taken


def _decimals_by_arrow(groups: list[tuple[int, Ints]], negative: Mask, fraction: int) -> pa.Array:
    """Convert to Arrow's own decimals, of two words each, which it prints."""
    count, last, taken = len(negative), _last_digits(groups), 0
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    for digits, value in reversed(groups):
        word, power = (second, taken) if taken < last else (first, taken - last)
        word += value.view(np.uint64) * np.uint64(10**power)
        taken += digits
    words = np.empty((count, 2), np.uint64)
    if taken > last:
        low, high = _product(first, 10**last)
        words[:, 0] = low + second
        words[:, 1] = high + (words[:, 0] < second)
    else:
        words[:, 0], words[:, 1] = second, 0
    one = negative.astype(np.uint64)
    words ^= (np.uint64(0) - one)[:, np.newaxis]  # all ones where it is negative
    words[:, 0] += one
    words[:, 1] += negative & (words[:, 0] == 0)
    decimals = pa.Array.from_buffers(
        pa.decimal128(38, fraction), count, [None, pa.py_buffer(words)]
    )
    return decimals.cast(pa.large_string())


def _product(values: Words, factor: int) -> tuple[Words, Words]:
    """Return the low and the high word of each product."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    f1, f0 = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    v1, v0 = values >> half, values & mask
    middle = v1 * f0 + (v0 * f0 >> half)
    other = v0 * f1 + (middle & mask)
    return values * np.uint64(factor), v1 * f1 + (middle >> half) + (other >> half)


def _decimals_by_digits(
    groups: list[tuple[int, Ints]], negative: Mask, precision: int, fraction: int
) -> pa.Array:
    whole = precision - fraction
    # columns: sign, one zero when there are no integer digits, integer digits, point, fraction
    # digits
    lead = max(whole, 1)
    grid = np.full((len(negative), 1 + lead + (1 + fraction if fraction else 0)), _ZERO, np.uint8)
    grid[:, 0] = ord("-")
    column = 1 if whole else 2
    if not whole:
        grid[:, column] = ord(".")
        column += 1
    taken = 0
    for digits, value in groups:
        nine = np.empty((len(negative), 9), np.uint8)
        nine[:, 0:3], nine[:, 3:6], nine[:, 6:9] = (
            _D3[value // 1_000_000],
            _D3[value // 1000 % 1000],
            _D3[value % 1000],
        )
        grid[:, column : column + digits] = nine[:, 9 - digits :]
        column, taken = column + digits, taken + digits
        if taken == whole and fraction:
            grid[:, column] = ord(".")
            column += 1
    digit = grid[:, 1 : 1 + lead] != _ZERO
    first = np.where(digit.any(axis=1), digit.argmax(axis=1), lead - 1)
    keep = np.ones(grid.shape, np.bool_)
    keep[:, 1 : 1 + lead] = np.arange(lead) >= first[:, None]
    nonzero = digit.any(axis=1) | (grid[:, 2 + lead :] != _ZERO).any(axis=1)
    keep[:, 0] = negative & nonzero
    return _ragged(grid, keep, None)


def _enums(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    index = _values(cells)
    wrong = index > np.uint64(len(column.elems))
    if wrong.any():
        bad |= wrong
        index = np.where(wrong, np.uint64(0), index)
    names = pa.array(["", *column.elems], pa.large_string())
    return names.take(pa.array(index.astype(np.int64), mask=cells.null))


def _sets(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    distinct, index = np.unique(_values(cells), return_inverse=True)
    texts = []
    for i, bits in enumerate(distinct.tolist()):
        try:
            texts.append(set_text(column, bits))
        except CodecError:
            texts.append("")
            bad |= index == i
    return pa.array(texts, pa.large_string()).take(pa.array(index, mask=cells.null))


def _jsons(column: Column, buffer: Buffer, cells: Cells, bad: Mask) -> pa.Array:
    there = None if cells.null is None else np.flatnonzero(~cells.null)
    start, end = cells.start, cells.start + cells.length
    if there is None:
        data, offsets = json_texts(buffer, start, end, bad)
    else:
        wrong = np.zeros(len(there), np.bool_)
        data, found = json_texts(buffer, start[there], end[there], wrong)
        bad[there] |= wrong
        size = np.zeros(len(start), np.int64)
        size[there] = np.diff(found)
        offsets = np.concatenate((found[:1], found[0] + np.cumsum(size)))
    return pa.LargeStringArray.from_buffers(
        len(start), pa.py_buffer(offsets), data, _validity(cells.null), -1, 0
    )


_KERNELS: dict[str, Callable[[Column, Buffer, Cells, Mask], pa.Array]] = {
    "int": _ints,
    "year": _ints,
    "bit": _bits,
    "float": _floats,
    "double": _floats,
    "decimal": _decimals,
    "text": _bytes,
    "binary": _bytes,
    "date": _times,
    "datetime": _times,
    "timestamp": _times,
    "time": _durations,
    "enum": _enums,
    "set": _sets,
    "json": _jsons,
}

KERNEL_KINDS = frozenset(_KERNELS)
"""Kinds of columns that have a kernel; tables with any other are decoded row by row."""
