"""TiDB's old row format, one row at a time: `(datum(column id) datum(value))*`.

A row without columns is one byte 00. Inserts have the handle before the pairs: one varint (integer
key or hidden row id), or one datum for each column of a clustered key. An update is the old row's
pairs followed by the new row's, the same ids in both. Tables with a hidden row id carry it in
updates and deletes as column -1.

`sluice.tidb.rows` decodes whole batches faster. This module is the reference for its tests, decodes
what its kernels refuse, and finds the exact place of an error.
"""

from collections.abc import Mapping
from typing import Any

from sluice.tidb.codec.column_value import from_datum, missing_value, to_datum
from sluice.tidb.codec.datum import NIL, VARINT, Datum, decode_datum, encode_datum, skip_datum
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.schema import WHOLE_COLUMN, Column, Table

HANDLE_ID = -1
"""Column id of the hidden row id."""

ROWID_NAME = "_tidb_rowid"

Pairs = dict[int, tuple[Datum, int]]  # column id -> datum and its offset


def read_pairs(data: bytes, pos: int) -> list[tuple[int, Datum, int]]:
    """Yield `(column id, datum, offset of the datum)` to the end of `data`."""
    if data[pos:] == b"\0":
        return []
    pairs = []
    while pos < len(data):
        key, value_at = decode_datum(data, pos)
        if key.flag != VARINT or not isinstance(key.value, int):
            raise CodecError(f"a column id is expected, found flag 0x{key.flag:02x}", pos)
        value, pos = decode_datum(data, value_at)
        pairs.append((key.value, value, value_at))
    return pairs


def column_ids(data: bytes, image: int = 0, images: int = 1) -> list[int]:
    """Return the column ids in an updated or deleted row.

    For an update `images` is 2, and `image` selects old (0) or new (1).
    """
    ids: list[int] = []
    pos = len(data) if data == b"\0" else 0
    while pos < len(data):
        key, pos = decode_datum(data, pos)
        if key.flag != VARINT or not isinstance(key.value, int):
            raise CodecError(f"a column id is expected, found flag 0x{key.flag:02x}", pos)
        ids.append(key.value)
        pos = skip_datum(data, pos)
    size = len(ids) // images
    return ids[image * size : (image + 1) * size]


def _by_id(pairs: list[tuple[int, Datum, int]]) -> Pairs:
    found: Pairs = {}
    for column_id, datum, at in pairs:
        if column_id in found:
            raise CodecError(f"column id {column_id} occurs twice", at)
        found[column_id] = (datum, at)
    return found


def _values(table: Table, pairs: Pairs, handle: Mapping[int, Datum]) -> list[Any]:
    """Return values of the stored columns, and of the hidden row id in heap tables."""
    values = []
    for column in table.stored_columns:
        datum, at = pairs.get(column.id, (None, 0))
        if datum is None:
            datum = handle.get(column.id)
        try:
            values.append(missing_value(column) if datum is None else from_datum(column, datum))
        except CodecError as error:
            raise CodecError(error.what, at) from error
    if table.handle_kind == "heap":
        rowid, at = pairs.get(HANDLE_ID, (handle.get(HANDLE_ID), 0))
        if rowid is None or not isinstance(rowid.value, int):
            raise CodecError("the hidden row id is missing", at)
        values.append(rowid.value)
    return values


def handle_columns(table: Table) -> list[tuple[Column, bool]]:
    """Return the columns of a clustered key in handle order.

    Each comes with whether the handle holds the whole value.
    """
    index = table.primary_index
    if index is None:
        raise CodecError(f"table {table.full_name} has a common handle and no primary key")
    return [
        (table.columns[offset], length == WHOLE_COLUMN)
        for _, offset, length in index.columns
        if not table.columns[offset].names_source
    ]


def decode_insert(table: Table, data: bytes) -> list[Any]:
    """Return the values of an inserted row in the order of `table.stored_columns`.

    In heap tables the hidden row id follows. Raises CodecError with the byte offset.
    """
    handle: dict[int, Datum] = {}
    pos = 0
    if table.handle_kind == "common":
        for column, whole in handle_columns(table):
            datum, pos = decode_datum(data, pos)
            if whole:
                handle[column.id] = datum
    else:
        datum, pos = decode_datum(data, pos)
        if datum.flag != VARINT:
            raise CodecError(f"an integer handle is expected, found flag 0x{datum.flag:02x}", 0)
        key = table.handle_column
        handle[HANDLE_ID if key is None else key.id] = datum
    return _values(table, _by_id(read_pairs(data, pos)), handle)


def decode_delete(table: Table, data: bytes) -> list[Any]:
    """Return a deleted row's values, as `decode_insert`."""
    return _values(table, _by_id(read_pairs(data, 0)), {})


def decode_update(table: Table, data: bytes) -> tuple[list[Any], list[Any]]:
    """Return the old and the new row's values, as `decode_insert`."""
    pairs = read_pairs(data, 0)
    if len(pairs) % 2:
        raise CodecError(f"an update holds {len(pairs)} columns, which is odd", len(data))
    old, new = _by_id(pairs[: len(pairs) // 2]), _by_id(pairs[len(pairs) // 2 :])
    if old.keys() != new.keys():
        raise CodecError(
            f"column ids {sorted(old.keys() ^ new.keys())} are in one half of an update only",
            len(data),
        )
    return _values(table, old, {}), _values(table, new, {})


def _id(column_id: int) -> bytes:
    return bytes((VARINT,)) + encode_varint(column_id)


def _pairs(table: Table, values: Mapping[str, Any], columns: list[Column], *, rowid: bool) -> bytes:
    out = bytearray()
    for column in columns:
        out += _id(column.id) + to_datum(column, values.get(column.name))
    if rowid:
        out += _id(HANDLE_ID) + encode_datum(Datum(VARINT, values[ROWID_NAME]))
    return bytes(out) or bytes((NIL,))


def encode_insert(table: Table, values: Mapping[str, Any]) -> bytes:
    """Encode an inserted row as TiDB does.

    `values` by column name (a missing name is NULL), in heap tables also `_tidb_rowid`. NULLs of
    columns with a NULL default are left out. Collated clustered keys get the value as sort key:
    consumers take those columns from the row.
    """
    out = bytearray()
    in_handle: set[int] = set()
    if table.handle_kind == "common":
        for column, whole in handle_columns(table):
            value = values[column.name]
            if column.kind == "text" and not whole:
                columns = table.primary_index.columns  # type: ignore[union-attr]
                value = value[: next(n for name, _, n in columns if name == column.name)]
            out += to_datum(column, value, in_handle=True)
            if whole and column.kind != "text":
                in_handle.add(column.id)
    elif (key := table.handle_column) is not None:
        value = values[key.name]
        out += encode_datum(Datum(VARINT, value - (1 << 64) if value >= 1 << 63 else value))
        in_handle.add(key.id)
    else:
        out += encode_datum(Datum(VARINT, values[ROWID_NAME]))
    columns = []
    for column in table.stored_columns:
        skip = (
            values.get(column.name) is None
            and column.default is None
            and column.origin_default is None
        )
        if column.id not in in_handle and not (skip and not column.not_null):
            columns.append(column)
    return bytes(out) + _pairs(table, values, columns, rowid=False)


def encode_delete(table: Table, values: Mapping[str, Any]) -> bytes:
    """Encode a deleted row as TiDB does; `values` as for `encode_insert`, NULLs explicit."""
    return _pairs(table, values, list(table.stored_columns), rowid=table.handle_kind == "heap")


def encode_update(table: Table, old: Mapping[str, Any], new: Mapping[str, Any]) -> bytes:
    """Encode an updated row as TiDB does: the old row's pairs, then the new row's."""
    return encode_delete(table, old) + encode_delete(table, new)
