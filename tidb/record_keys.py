"""Keys under which TiKV has the rows of a table: `t<table id>_r<handle>`.

They are made from rows as a binlog has them. A handle is the integer key or the hidden row id, or
the values of a clustered key in memcomparable form. The table id is the physical one: a partitioned
table has one for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.tidb.codec.datum import (
    COMPACT,
    DECIMAL,
    DURATION,
    FLOAT,
    NIL,
    UVARINT,
    VARINT,
    decode_datum,
    skip_datum,
)
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import decode_int, encode_bytes, encode_int, encode_uint
from sluice.tidb.codec.row import HANDLE_ID, handle_columns
from sluice.tidb.partitions import PartitionError, collation_key
from sluice.tidb.schema import WHOLE_COLUMN, Column, Table

_KEY_BYTES, _KEY_INT, _KEY_UINT = b"\x01", b"\x03", b"\x04"
_SIGN, _MASK = 1 << 63, (1 << 64) - 1


def record_key(physical_id: int, handle: bytes) -> bytes:
    """Return the key of a row in a table or partition."""
    return b"t" + encode_int(physical_id) + b"_r" + handle


def split_record_key(key: bytes) -> tuple[int, bytes] | None:
    """Return the physical table id and the handle of a row's key; None for another key."""
    if key[:1] != b"t" or key[9:11] != b"_r":
        return None
    return decode_int(key, 1)[0], key[11:]


def handle_of_insert(table: Table, row: bytes) -> bytes:
    """Return the handle of a row of `inserted_rows`. Raises CodecError."""
    if table.handle_kind != "common":
        return _int_handle(row, 0)
    pos, handle = 0, b""
    for _ in handle_columns(table):
        end = skip_datum(row, pos)
        handle += _key_datum(row[pos:end])
        pos = end
    return handle


def handles_of_images(table: Table, row: bytes, images: int) -> list[bytes | None]:
    """Return the handle of each image of a row of `deleted_rows` (1 image) or `updated_rows` (2).

    None: the text of a clustered key has a collation with an order that only TiDB knows. Raises
    CodecError.
    """
    pairs = _pairs(row)
    size = len(pairs) // images
    return [
        _image_handle(table, row, dict(pairs[n * size : (n + 1) * size])) for n in range(images)
    ]


def _image_handle(table: Table, row: bytes, places: Mapping[int, tuple[int, int]]) -> bytes | None:
    """Return a row image's handle; `places` has each datum's begin and end by column id."""
    if table.handle_kind != "common":
        column = table.handle_column
        begin, _ = places[HANDLE_ID if column is None else column.id]
        return _int_handle(row, begin)
    handle, columns = b"", handle_columns(table)
    assert table.primary_index is not None
    lengths = {name: length for name, _, length in table.primary_index.columns}
    for column, _ in columns:
        begin, end = places[column.id]
        datum = row[begin:end]
        try:
            handle += _key_of_value(column, datum, lengths[column.name])
        except PartitionError:
            return None
    return handle


def _key_of_value(column: Column, datum: bytes, length: int) -> bytes:
    """Convert a column's datum from its form in a row to its form in a key.

    `length`: of a prefix in characters. Raises PartitionError.
    """
    if column.kind == "time":
        return bytes((DURATION,)) + encode_int(_int(datum))
    if column.kind not in ("text", "binary"):
        return _key_datum(datum)
    value = decode_datum(datum)[0].value
    if not isinstance(value, bytes):
        return _key_datum(datum)
    if column.kind == "binary":
        return _KEY_BYTES + encode_bytes(value if length == WHOLE_COLUMN else value[:length])
    text = value.decode("utf-8", "surrogateescape")
    return _KEY_BYTES + encode_bytes(
        _weights(column.collate, text if length == WHOLE_COLUMN else text[:length])
    )


def _weights(collation: str, text: str) -> bytes:
    """Return the sort key that TiDB makes of a text.

    Raises PartitionError for a collation that isn't known here.
    """
    key = collation_key(collation, text)
    if collation.endswith("_bin"):
        return key
    if collation.endswith("general_ci"):
        return b"".join(bytes((0, byte)) for byte in key)
    raise PartitionError(f"the collation {collation}: only TiDB knows its keys")


def _key_datum(datum: bytes) -> bytes:
    """Convert a datum of a row or of an insert's handle to memcomparable form."""
    flag = datum[0]
    if flag == VARINT:
        return _KEY_INT + encode_int(_int(datum))
    if flag == UVARINT:
        return _KEY_UINT + encode_uint(_int(datum))
    if flag == COMPACT:
        value = decode_datum(datum)[0].value
        assert isinstance(value, bytes)
        return _KEY_BYTES + encode_bytes(value)
    if flag in (DECIMAL, DURATION, FLOAT, NIL):  # the same bytes in rows and keys
        return datum
    raise CodecError(f"datum flag 0x{flag:02x} can't be in a key", 0)


def _int_handle(row: bytes, pos: int) -> bytes:
    value = decode_datum(row, pos)[0].value
    if not isinstance(value, int):
        raise CodecError("an integer handle is expected", pos)
    return encode_int((value + _SIGN & _MASK) - _SIGN)


def _int(datum: bytes) -> int:
    value = decode_datum(datum)[0].value
    if not isinstance(value, int):
        raise CodecError("an integer is expected", 0)
    return value


def _pairs(row: bytes) -> list[tuple[int, tuple[int, int]]]:
    """Yield column ids with begin and end of their datum, in order."""
    found, pos = [], len(row) if row == bytes((NIL,)) else 0
    while pos < len(row):
        key, begin = decode_datum(row, pos)
        pos = skip_datum(row, begin)
        if key.flag != VARINT or not isinstance(key.value, int):
            raise CodecError(f"a column id is expected, found flag 0x{key.flag:02x}", begin)
        found.append((key.value, (begin, pos)))
    return found
