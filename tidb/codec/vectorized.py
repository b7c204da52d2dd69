"""Walk the datums of many rows at once, with a cursor for every row.

One numpy operation moves all cursors past a datum. Only positions and integers are taken here;
`sluice.tidb.codec.columnar` turns them into Arrow columns. Nothing in this module raises on bad
bytes: rows that don't fit are marked in `bad`, keep their place and are left to
`sluice.tidb.codec.row`, which finds the exact error.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.tidb.codec.datum import COMPACT, DECIMAL, DURATION, FLOAT, JSON, NIL, UVARINT, VARINT
from sluice.tidb.codec.decimal import MAX_FRACTION, MAX_PRECISION, body_size, valid_prefix
from sluice.tidb.codec.varint import encode_varint

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

PADDING = 64
"""Reads look at most this far beyond a row's end."""
_STOP = np.uint64(0x8080808080808080)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)


def _decimal_sizes() -> Ints:
    sizes = np.full(1 << 16, -1, np.int64)
    for precision in range(MAX_PRECISION + 1):  # each process imports this: no more than there are
        for fraction in range(MAX_FRACTION + 1):
            if valid_prefix(precision, fraction):
                sizes[precision | fraction << 8] = 2 + body_size(precision, fraction)
    return sizes


_DECIMAL_SIZE = _decimal_sizes()
_JSON_SIZE = np.full(256, -1, np.int64)
for _kind, _size in {
    0x04: 2,
    0x09: 9,
    0x0A: 9,
    0x0B: 9,
    0x0E: 9,
    0x0F: 9,
    0x10: 9,
    0x11: 13,
}.items():
    _JSON_SIZE[_kind] = _size
_JSON_SIZE[[0x01, 0x03]] = -2  # containers begin with their size
_JSON_SIZE[[0x0C, 0x0D]] = -3  # strings and opaque values begin with their length


class Buffer:
    """The bytes of a column of rows, readable 8 bytes at a time from any offset.

    `start` and `end` of each row.
    """

    def __init__(self, rows: pa.LargeBinaryArray) -> None:
        _, offsets_buffer, data = rows.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int64, len(rows) + 1, rows.offset * 8)
        first, last = int(offsets[0]), int(offsets[-1])
        if data is None or data.size < last + PADDING:
            padded = np.zeros(last - first + PADDING, np.uint8)
            if last > first:
                padded[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
            offsets = offsets - first
        else:
            padded = np.frombuffer(data, np.uint8)
        self._look_at(padded)
        self.start: Ints = offsets[:-1]
        self.end: Ints = offsets[1:]

    @classmethod
    def wrap(cls, data: bytes) -> "Buffer":
        """Wrap bytes with padding behind them; the caller knows what lies where: no rows."""
        buffer = cls.__new__(cls)
        buffer._look_at(np.frombuffer(data, np.uint8))
        buffer.start = buffer.end = np.zeros(0, np.int64)
        return buffer

    def _look_at(self, padded: Bytes) -> None:
        self.bytes: Bytes = padded
        self.words: Words = np.ndarray((len(padded) - 8,), "<u8", buffer=padded.data, strides=(1,))


@dataclass(slots=True)
class Cells:
    """One column's datum in each row.

    `present` and `null`: None = all present, none null. `start` and `length`: the bytes after the
    flag, without a length prefix. `value`: integers of varint datums (two's complement);
    `unsigned`: which came as unsigned ones, None = none.
    """

    present: Mask | None
    null: Mask | None
    start: Ints
    length: Ints
    value: Words | None
    unsigned: Mask | None

    def select(self, rows: Ints) -> "Cells":
        """Return the cells of some rows."""

        return Cells(
            None if self.present is None else self.present[rows],
            None if self.null is None else self.null[rows],
            self.start[rows],
            self.length[rows],
            None if self.value is None else self.value[rows],
            None if self.unsigned is None else self.unsigned[rows],
        )


def varints(words: Words, at: Ints) -> tuple[Words, Ints, Mask | None]:
    """Decode unsigned LEB128 at each position: `(values, lengths, malformed or None)`."""
    word = words[at]
    stop = ~word & _STOP
    low = stop & (~stop + _ONE)
    # everything up to the last byte's high bit; all ones when no byte stops
    mask = low | (low - _ONE)
    size = (np.bitwise_count(mask & _STOP)).astype(np.int64)
    word &= mask
    word &= ~_STOP
    longest = int(size.max(initial=0))
    if longest > 1:
        word = (word & np.uint64(0x007F007F007F007F)) | (
            (word & np.uint64(0x7F007F007F007F00)) >> _ONE
        )
    if longest > 2:
        word = (word & np.uint64(0x00003FFF00003FFF)) | (
            (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
        )
    if longest > 4:
        word = (word & np.uint64(0x000000000FFFFFFF)) | (
            (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
        )
    bad = None
    if longest == 8:
        more = np.flatnonzero(stop == 0)
        if len(more):
            tail = words[at[more] + 8]
            high = word[more] | (tail & np.uint64(0x7F)) << np.uint64(56)
            ten = (tail & np.uint64(0x80)) != 0
            tenth = tail >> np.uint64(8) & np.uint64(0xFF)
            word[more] = np.where(ten, high | tenth << np.uint64(63), high)
            size[more] = 9 + ten
            if (ten & (tenth > 1)).any():
                bad = np.zeros(len(at), np.bool_)
                bad[more] = ten & (tenth > 1)
    return word, size, bad


def unzigzag(raw: Words) -> Words:
    """Convert zigzag values to two's complement."""
    return (raw >> _ONE) ^ (~(raw & _ONE) + _ONE)


class Cursor:
    """Walk the rows of `buffer` given by `rows` (None: all), ascending."""

    def __init__(self, buffer: Buffer, rows: Ints | None = None) -> None:
        self.words = buffer.words
        self.bytes = buffer.bytes
        self.pos: Ints = buffer.start.copy() if rows is None else buffer.start[rows]
        self.first: Ints = self.pos.copy()
        self.end: Ints = buffer.end if rows is None else buffer.end[rows]
        self.bad: Mask = np.zeros(len(self.pos), np.bool_)

    def column(self, column_id: int, flags: tuple[int, ...]) -> Cells | None:
        """Take the pair of `column_id` in the rows that have their cursor at one.

        None when no row has.
        """
        header = bytes((VARINT,)) + encode_varint(column_id)
        width = len(header)
        if width > 7:  # no room for the flag in a word: such ids are left to the scalar decoder
            return None
        word = self.words[self.pos]
        here = (word & np.uint64((1 << 8 * width) - 1)) == np.uint64(
            int.from_bytes(header, "little")
        )
        here &= self.pos < self.end
        if here.all():
            present = None
        elif here.any():
            present = here
        else:
            return None
        return self._take(
            word >> np.uint64(8 * width) & np.uint64(0xFF), self.pos + (width + 1), flags, present
        )

    def datum(self, flags: tuple[int, ...]) -> Cells:
        """Take one datum in every row."""
        return self._take(self.words[self.pos] & np.uint64(0xFF), self.pos + 1, flags, None)

    def done(self) -> Mask:
        """Return rows that were read to their end without fault.

        A row without columns is a single zero byte.
        """
        done: Mask = self.pos == self.end
        if not done.all():
            done |= (
                (self.pos == self.end - 1) & (self.bytes[self.pos] == 0) & (self.pos == self.first)
            )
        return done & ~self.bad

    def _take(self, flag: Words, body: Ints, flags: tuple[int, ...], present: Mask | None) -> Cells:
        kinds = (
            [int(flag[0])]
            if len(flag) and (flag == flag[0]).all()
            else np.flatnonzero(np.bincount(flag.view(np.int64))).tolist()
        )
        if len(kinds) == 1 and kinds[0] in flags:
            start, length, value, bad = self._measure(kinds[0], body)
            null = None
            unsigned = np.ones(len(body), np.bool_) if kinds[0] == UVARINT else None
        else:
            start, length, value, bad, null, unsigned = self._mixed(flag, kinds, body, flags)
        after = start + length
        if present is None:
            self.pos = after
        else:
            start = np.where(present, start, self.pos)
            length = np.where(present, length, 0)
            self.pos = np.where(present, after, self.pos)
            if null is not None:
                null &= present
            if bad is not None:
                bad &= present
        over = self.pos > self.end
        if bad is not None:
            over |= bad
        if over.any():
            self.bad |= over
            self.pos = np.where(over, self.end, self.pos)
            start = np.where(over, self.end, start)
            length = np.where(over, 0, length)
        return Cells(present, null, start, length, value, unsigned)

    def _mixed(
        self, flag: Words, kinds: list[int], body: Ints, flags: tuple[int, ...]
    ) -> tuple[Ints, Ints, Words | None, Mask | None, Mask | None, Mask | None]:
        start, length = body.copy(), np.zeros(len(body), np.int64)
        null: Mask = flag == NIL
        bad, value, unsigned = ~null, None, None
        for kind in kinds:
            if kind not in flags:
                continue
            mine = flag == kind
            at, size, ints, wrong = self._measure(kind, body)
            start, length = np.where(mine, at, start), np.where(mine, size, length)
            bad = bad & ~mine if wrong is None else np.where(mine, wrong, bad)
            if ints is not None:
                value = np.where(mine, ints, np.uint64(0) if value is None else value)
                if kind == UVARINT:
                    unsigned = mine
        return (
            start,
            length,
            value,
            bad if bad.any() else None,
            null if null.any() else None,
            unsigned,
        )

    def _measure(self, flag: int, body: Ints) -> tuple[Ints, Ints, Words | None, Mask | None]:
        """Start and length of the datums' bytes, integers, malformed ones."""
        if flag in (VARINT, UVARINT):
            value, size, bad = varints(self.words, body)
            return body, size, unzigzag(value) if flag == VARINT else value, bad
        if flag == COMPACT:
            value, size, bad = varints(self.words, body)
            return body + size, *_length(value >> _ONE, (value & _ONE) != 0, bad)
        if flag == FLOAT:
            return body, np.full(len(body), 8, np.int64), None, None
        if flag == DURATION:
            value = self.words[body].byteswap() ^ np.uint64(1 << 63)
            return body, np.full(len(body), 8, np.int64), value, None
        if flag == DECIMAL:
            length = _DECIMAL_SIZE[(self.words[body] & np.uint64(0xFFFF)).astype(np.int64)]
            bad = length < 0
            return body, length, None, bad if bad.any() else None
        if flag == JSON:
            return self._measure_json(body)
        return body, np.zeros(len(body), np.int64), None, np.ones(len(body), np.bool_)

    def _measure_json(self, body: Ints) -> tuple[Ints, Ints, None, Mask | None]:
        kind = self.bytes[body]
        length = _JSON_SIZE[kind]
        if (length == -2).any():
            length = np.where(
                length == -2, 1 + (self.words[body + 1] >> np.uint64(32)).astype(np.int64), length
            )
        if (length == -3).any():
            head = np.where(kind == 0x0D, 2, 1)
            value, size, bad = varints(self.words, body + head)
            huge = value > np.uint64(1 << 40)
            if bad is not None:
                huge |= bad
            text = np.where(huge, -1, head + size + np.where(huge, 0, value).astype(np.int64))
            length = np.where(length == -3, text, length)
        wrong = length < 0
        return body, length, None, wrong if wrong.any() else None


def _length(value: Words, negative: Mask, bad: Mask | None) -> tuple[Ints, None, Mask | None]:
    wrong = negative | (value > np.uint64(1 << 40))
    if bad is not None:
        wrong |= bad
    if not wrong.any():
        return value.view(np.int64), None, None
    return np.where(wrong, 0, value).astype(np.int64), None, wrong
