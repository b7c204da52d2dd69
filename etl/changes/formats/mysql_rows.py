"""Parse the rows of a MySQL server's answer to a statement, many rows at once.

A driver makes an object of every value. Here the packets of an answer, one a row, are taken as
they come from the socket: where each begins is found one after the other, then all rows move in
lock step through the columns. A value is its length and its bytes: a length below 251 is one byte,
251 stands for NULL, 252, 253 and 254 mean that two, three and eight bytes of length follow (the
protocol's length-encoded strings).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.errors import SluiceError

__all__ = ["ProtocolError", "RowBlock", "RowPackets"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PACKET_HEADER = struct.Struct("<I")
_MAX_PACKET_BYTES = 0xFFFFFF
"""A packet with so many bytes goes on in the next one."""
_NULL, _TWO_BYTE_LENGTH, _THREE_BYTE_LENGTH, _EIGHT_BYTE_LENGTH = 0xFB, 0xFC, 0xFD, 0xFE
_EOF_PACKET, _ERROR_PACKET = 0xFE, 0xFF
_PADDING = b"\0" * 9


class ProtocolError(SluiceError):
    """An answer that no server of this protocol would give."""

    transient = True
    hint = "see what stands between here and the server"


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of an answer.

    In column `n` of row `r` are the bytes of `data` from `start[n][r]` on, `size[n][r]` of them,
    unless `null[n][r]`.
    """

    data: npt.NDArray[np.uint8]
    start: tuple[Ints, ...]
    size: tuple[Ints, ...]
    null: tuple[Mask, ...]
    rows: int

    def column(self, number: int) -> pa.LargeBinaryArray:
        """Return the values of a column, in one pass of Arrow's own copy.

        The block is seen as gap, value, gap, value, ...
        """
        start, size, null = self.start[number], self.size[number], self.null[number]
        edges = np.empty(2 * self.rows + 1, np.int64)
        edges[:1] = start[:1]
        edges[1::2], edges[2::2] = start, start + size
        both = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), 2 * self.rows, [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        taken = both.take(pa.array(np.arange(1, 2 * self.rows, 2)))
        _, offsets, values = taken.buffers()
        validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            self.rows,
            [validity, offsets, values if values is not None else pa.py_buffer(b"")],
        )


class RowPackets:
    """The rows of one answer, behind its columns.

    Bytes go in by `feed`, whole rows come out of `take`.
    """

    def __init__(self, columns: int, most_bytes: int) -> None:
        """Create the row packets; `most_bytes`: of a row, about."""
        self._columns, self._most_bytes = columns, most_bytes
        self._data = bytearray()
        self._at = 0
        self._begins: list[int] = []
        self._large_next = False
        self.is_over = False
        self.error = b""
        """The server's error in the place of more rows, as the protocol's ERR packet."""

    def has(self, least_bytes: int) -> bool:
        """Return whether `take` should be called.

        So many bytes of whole rows are there, or nothing goes on before.
        """
        return self._at >= least_bytes or self.is_over or self._large_next

    def feed(self, data: bytes) -> None:
        """Take in more of the answer. Raises ProtocolError."""
        if self._large_next and len(self._data) > self._most_bytes:
            raise ProtocolError(
                f"a packet of more than {self._most_bytes >> 20} MiB: no row is that large"
            )
        self._data += data
        self._scan()

    def take(self) -> RowBlock | None:
        """Return the rows that have come whole, None if there are none. Raises ProtocolError."""
        if self._begins:
            content = bytes(self._data[: self._at]) + _PADDING
            begins, ends = self._begins, [*(at - 4 for at in self._begins[1:]), self._at]
            del self._data[: self._at]
            self._at, self._begins = 0, []
            if not self.is_over and not self.error:
                self._scan()
            return self._block(content, begins, ends)
        if (large := self._pop_large_row()) is not None:
            return self._block(large + _PADDING, [0], [len(large)])
        return None

    def _scan(self) -> None:
        data, at, begins = self._data, self._at, self._begins
        last = len(data) - 4
        while at < last:
            size = _PACKET_HEADER.unpack_from(data, at)[0] & _MAX_PACKET_BYTES
            self._large_next = size == _MAX_PACKET_BYTES
            if self._large_next or at + 4 + size > len(data):
                break
            first = data[at + 4]
            if first >= _EOF_PACKET and (first == _ERROR_PACKET or size < 9):
                if first == _ERROR_PACKET:
                    self.error = bytes(data[at + 4 : at + 4 + size])
                self.is_over = True
                break
            begins.append(at + 4)
            at += 4 + size
        self._at = at

    def _pop_large_row(self) -> bytes | None:
        """Return a row in several packets, if that comes next and is there."""
        at, ends, size = 0, [], _MAX_PACKET_BYTES
        while self._large_next and size == _MAX_PACKET_BYTES:
            if at + 4 > len(self._data):
                return None
            size = _PACKET_HEADER.unpack_from(self._data, at)[0] & _MAX_PACKET_BYTES
            at += 4 + size
            ends.append(at)
        if not ends or at > len(self._data):
            return None
        row = b"".join(
            bytes(self._data[begin + 4 : end]) for begin, end in zip([0, *ends], ends, strict=False)
        )
        del self._data[:at]
        self._large_next = False
        self._scan()
        return row

    def _block(self, content: bytes, begins: list[int], ends: list[int]) -> RowBlock:
        data = np.frombuffer(content, np.uint8)
        at = np.array(begins, np.int64)
        starts, sizes, nulls = [], [], []
        try:
            for _ in range(self._columns):
                start, size, null = _values(data, at)
                starts.append(start)
                sizes.append(size)
                nulls.append(null)
                at = start + size
        except IndexError:
            raise ProtocolError("a row of an answer ends before its last value") from None
        if (at != np.array(ends, np.int64)).any():
            raise ProtocolError(f"a row of an answer doesn't have {self._columns} values")
        return RowBlock(data, tuple(starts), tuple(sizes), tuple(nulls), len(begins))


def _values(data: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints, Mask]:
    """Return first bytes and sizes of the values that begin at `at`, and which are NULL."""
    first = data[at]
    size = first.astype(np.int64)
    start = at + 1
    null = first == _NULL
    size[null] = 0
    if (first > _NULL).any():
        for mark, width in (
            (_TWO_BYTE_LENGTH, 2),
            (_THREE_BYTE_LENGTH, 3),
            (_EIGHT_BYTE_LENGTH, 8),
        ):
            rows = np.flatnonzero(first == mark)
            if len(rows):
                size[rows] = sum(
                    data[at[rows] + 1 + n].astype(np.int64) << (8 * n) for n in range(width)
                )
                start[rows] += width
    return start, size, null
