"""Convert the row values that TiKV stores into the rows of a binlog.

TiKV holds a row under `t<physical id>_r<handle>`, in one of two formats:

- version 1 is the old row format: pairs of column id and datum, see `sluice.tidb.codec.row`.
- version 2 begins with byte 80 (hex) and has no flags: the column's type decides what a value's
  bytes mean.

      80 flags u16 count u16 nulls  ids  ends  values  [checksum]

  Ids are u8, ends u16, or both u32 with bit 0 of flags; all are little-endian. First come the ids
  with a value, ascending, then those that are NULL. An end is counted from the first value.

A binlog has the old format only. Neither format holds the columns that the handle holds.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping

from sluice.tidb.codec.column_value import missing_value, to_datum
from sluice.tidb.codec.datum import (
    BYTES,
    DECIMAL,
    DURATION,
    FLOAT,
    INT,
    JSON,
    NIL,
    UINT,
    VARINT,
    VECTOR,
    decode_datum,
    skip_datum,
)
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import decode_bytes, decode_int, decode_uint
from sluice.tidb.codec.row import HANDLE_ID, handle_columns
from sluice.tidb.codec.varint import encode_uvarint, encode_varint
from sluice.tidb.schema import STATE_PUBLIC, STATE_WRITE_ONLY, Column, Table

VERSION_2 = 0x80
_HEAD = struct.Struct("<BBHH")
_IS_LARGE = 1
_NULL = bytes((NIL,))
_STATE_WRITE_REORGANIZATION = 3
_WRITABLE_STATES = frozenset({STATE_WRITE_ONLY, _STATE_WRITE_REORGANIZATION, STATE_PUBLIC})
"""The states of columns in which TiDB writes them to a binlog."""

_Encoder = Callable[[bytes], bytes]

SIGNED, UNSIGNED, TEXT, FLAGGED = range(1, 5)
"""Conversions of a version 2 value to a datum, in a shape."""
_OF_COLUMN, _HIDDEN, _OF_PARTS = range(3)
_IS_HANDLE, _NO_PART = 254, 255
_ENTRY = struct.Struct("<IBBB")


def _signed(value: bytes) -> bytes:
    return b"\x08" + encode_varint(int.from_bytes(value, "little", signed=True))


def _unsigned(value: bytes) -> bytes:
    return b"\x09" + encode_uvarint(int.from_bytes(value, "little"))


def _compact(value: bytes) -> bytes:
    return b"\x02" + encode_varint(len(value)) + value


def _flagged(flag: int) -> _Encoder:
    head = bytes((flag,))
    return lambda value: head + value


_ENCODERS: Mapping[str, _Encoder] = {
    "int": _signed,
    "year": _signed,
    "time": _signed,
    "bit": _unsigned,
    "date": _unsigned,
    "datetime": _unsigned,
    "timestamp": _unsigned,
    "enum": _unsigned,
    "set": _unsigned,
    "text": _compact,
    "binary": _compact,
    "float": _flagged(FLOAT),
    "double": _flagged(FLOAT),
    "decimal": _flagged(DECIMAL),
    "json": _flagged(JSON),
    "vector": _flagged(VECTOR),
}
"""The function for each kind of column that makes a datum of a version 2 value."""


class StoredRowConverter:
    """Convert the rows of one table, as it is defined at one time."""

    def __init__(self, table: Table) -> None:
        self.table = table
        written = [c for c in table.columns if c.state in _WRITABLE_STATES and not c.virtual]
        self._encoders = {column.id: _encoder_of(column) for column in written}
        self._columns = [(c.id, _id_datum(c.id), c) for c in written]
        self._handle_column = table.handle_column
        self._key_columns = handle_columns(table) if table.handle_kind == "common" else []
        self._is_heap = table.handle_kind == "heap"
        keys = {name for index in table.indexes if index.unique for name, _, _ in index.columns}
        self._passed_on = (
            [c.id for c in written if c.name in keys]
            if self._is_heap and table.is_partitioned
            else []
        )
        self._missing: dict[int, bytes] = {}

    @functools.cached_property
    def shape(self) -> tuple[bytes, tuple[bytes | None, ...]]:
        """Return the shape that compiled code needs to convert a row of version 2, b"" if it can't.

        Its source describes it. The second part has, for each column, the datum of rows that are
        older than it.
        """
        if self._passed_on:
            return b"", ()
        kind = _HIDDEN if self._is_heap else _OF_PARTS if self._key_columns else _OF_COLUMN
        parts = {column.id: n for n, (column, whole) in enumerate(self._key_columns) if whole}
        entries = [bytes((kind,))]
        missing: list[bytes | None] = []
        for column_id, _, column in self._columns:
            form, flag = _form_of(column)
            if not form or not 0 <= column_id < 2**32:
                return b"", ()
            part = _IS_HANDLE if column is self._handle_column else parts.get(column_id, _NO_PART)
            entries.append(_ENTRY.pack(column_id, form, flag, part))
            try:
                missing.append(self._missing_datum(column))
            except CodecError:
                missing.append(None)
        return b"".join(entries), tuple(missing)

    def insert(self, handle: bytes, value: bytes) -> bytes:
        """Return a row of `inserted_rows`. Raises CodecError."""
        found = self._datums(value)
        pairs = b"".join([head + found[i] for i, head, _ in self._columns if i in found])
        return self._handle_datums(handle) + (pairs or _NULL)

    def delete(self, handle: bytes, old: bytes) -> bytes:
        """Return a row of `deleted_rows`; `old` is the value before. Raises CodecError."""
        return self._pairs(handle, old) or _NULL

    def update(self, handle: bytes, old: bytes, new: bytes) -> bytes:
        """Return a row of `updated_rows`. Raises CodecError."""
        return self._pairs(handle, old) + self._pairs(handle, new) or _NULL

    def gives_key_up(self, handle: bytes, old: bytes, new: bytes) -> bool:
        """Return whether an update frees a value that identifies rows, for another row to take.

        Only in a partitioned table without a clustered key: its rows are identified by unique keys,
        others by their handle, which no update changes. Raises CodecError.
        """
        if not self._passed_on:
            return False
        before, after = self._image(handle, old), self._image(handle, new)
        return any(before.get(each) != after.get(each) for each in self._passed_on)

    def _pairs(self, handle: bytes, value: bytes) -> bytes:
        """Return an image with all columns that TiDB writes, in the table's order."""
        image = self._image(handle, value)
        parts = []
        for column_id, head, column in self._columns:
            datum = image.get(column_id)
            parts.append(head + (self._missing_datum(column) if datum is None else datum))
        if self._is_heap:
            parts.append(_id_datum(HANDLE_ID) + _int_datum(handle))
        return b"".join(parts)

    def _image(self, handle: bytes, value: bytes) -> dict[int, bytes]:
        """Return the datum of each column that value or handle holds; of two the value's counts."""
        found = self._datums(value)
        if (column := self._handle_column) is not None:
            number = decode_int(handle)[0]
            found[column.id] = (
                b"\x09" + encode_uvarint(number % 2**64)
                if column.unsigned
                else b"\x08" + encode_varint(number)
            )
        elif self._key_columns:
            for (column, whole), (flag, datum) in zip(
                self._key_columns, _handle_parts(handle), strict=True
            ):
                if whole and column.id not in found:
                    found[column.id] = (
                        b"\x08" + encode_varint(decode_int(datum, 1)[0])
                        if flag == DURATION
                        else datum
                    )
        return found

    def _handle_datums(self, handle: bytes) -> bytes:
        """Return what an inserted row begins with."""
        if self._key_columns:
            return b"".join(datum for _, datum in _handle_parts(handle))
        return _int_datum(handle)

    def _missing_datum(self, column: Column) -> bytes:
        """Return the value of rows that were written before the column existed."""
        if column.id not in self._missing:
            self._missing[column.id] = to_datum(column, missing_value(column))
        return self._missing[column.id]

    def _datums(self, value: bytes) -> dict[int, bytes]:
        """Return the datums in a stored value by column id.

        Columns that the table doesn't have or write are left out.
        """
        if not value:
            raise CodecError("a stored row has no bytes", 0)
        if value[0] != VERSION_2:
            return _datums_of_version_1(value)
        try:
            _, flags, count, nulls = _HEAD.unpack_from(value)
            total, at = count + nulls, _HEAD.size
            if flags & _IS_LARGE:
                ids: Iterable[int] = struct.unpack_from(f"<{total}I", value, at)
                at += 4 * total
                ends = struct.unpack_from(f"<{count}I", value, at)
                at += 4 * count
            else:
                ids = value[at : at + total]
                at += total
                ends = struct.unpack_from(f"<{count}H", value, at)
                at += 2 * count
        except struct.error as error:
            raise CodecError(
                f"a stored row of {len(value)} bytes is cut off: {error}", 0
            ) from error
        if count and not at + ends[-1] <= len(value):
            raise CodecError(
                f"a stored row of {len(value)} bytes is cut off: its values end at {at + ends[-1]}",
                at,
            )
        found: dict[int, bytes] = {}
        begin, encoders = 0, self._encoders
        for number, column_id in enumerate(ids):
            if number >= count:
                if column_id in encoders:
                    found[column_id] = _NULL
                continue
            end = ends[number]
            encoder = encoders.get(column_id)
            if encoder is not None:
                found[column_id] = encoder(value[at + begin : at + end])
            begin = end
        return found


def _form_of(column: Column) -> tuple[int, int]:
    """Return form and flag of a column in a shape; 0 for a type that isn't known."""
    encoder = _encoder_of(column)
    forms: dict[_Encoder, int] = {_signed: SIGNED, _unsigned: UNSIGNED, _compact: TEXT}
    form = forms.get(encoder, 0)
    if not form and column.kind in _ENCODERS:
        return FLAGGED, encoder(b"")[0]
    return form, 0


def _encoder_of(column: Column) -> _Encoder:
    """Return the function that makes a datum of a stored value of version 2."""
    if column.kind == "int" and column.unsigned:
        return _unsigned
    found = _ENCODERS.get(column.kind)
    return found if found is not None else functools.partial(_refuse, column)


def _refuse(column: Column, value: bytes) -> bytes:
    raise CodecError(f"column {column.name!r} has type {column.tp}, with unknown values")


def _datums_of_version_1(value: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    pos = len(value) if value == _NULL else 0
    while pos < len(value):
        key, begin = decode_datum(value, pos)
        pos = skip_datum(value, begin)
        if key.flag != VARINT or not isinstance(key.value, int):
            raise CodecError(f"a column id is expected, found flag 0x{key.flag:02x}", begin)
        found[key.value] = value[begin:pos]
    return found


def _handle_parts(handle: bytes) -> list[tuple[int, bytes]]:
    """Return the flag and the datum of each column of a clustered key.

    The flag is that in the key, the datum is as an insert has it.
    """
    found = []
    pos = 0
    while pos < len(handle):
        flag, begin = handle[pos], pos
        if flag == BYTES:
            text, pos = decode_bytes(handle, pos + 1)
            datum = _compact(text)
        elif flag == INT:
            number, pos = decode_int(handle, pos + 1)
            datum = b"\x08" + encode_varint(number)
        elif flag == UINT:
            number, pos = decode_uint(handle, pos + 1)
            datum = b"\x09" + encode_uvarint(number)
        elif flag in (FLOAT, DECIMAL, DURATION, NIL):  # the same bytes in rows and keys
            pos = skip_datum(handle, pos)
            datum = handle[begin:pos]
        else:
            raise CodecError(f"datum flag 0x{flag:02x} can't be in a key", pos)
        found.append((flag, datum))
    return found


def _int_datum(handle: bytes) -> bytes:
    return b"\x08" + encode_varint(decode_int(handle)[0])


def _id_datum(column_id: int) -> bytes:
    return b"\x08" + encode_varint(column_id)
