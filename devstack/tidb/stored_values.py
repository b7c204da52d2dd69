"""Encode rows of binlogs as TiKV stores them: version 2 of TiDB's row format, and version 1.

Version 2: 0x80, a flag byte (1: large), u16 number of values, u16 number of NULLs, the ids of
columns with a value, then of those that are NULL (u8 each, ascending), where each value ends (u16),
the values. Large rows have u32 ids and ends. All is little-endian (pingcap/tidb, util/rowcodec).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from sluice.tidb.codec.datum import BYTES, COMPACT, NIL, UVARINT, VARINT, decode_datum
from sluice.tidb.codec.row import HANDLE_ID, handle_columns, read_pairs
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.schema import WHOLE_COLUMN, Table

Datums = Mapping[int, bytes]
"""A row: the encoded datum of each column, by column id."""

_LARGE_ID, _LARGE_BYTES = 255, 65_535


def datums_of(row: bytes, pos: int = 0) -> list[tuple[int, bytes]]:
    """Split the pairs of a binlog's row from `pos` on. Raises CodecError."""
    pairs = read_pairs(row, pos)
    if not pairs:
        return []
    starts = [offset for _, _, offset in pairs]
    id_bytes = [1 + len(encode_varint(column_id)) for column_id, _, _ in pairs]
    ends = [start - size for start, size in zip(starts[1:], id_bytes[1:], strict=True)]
    return [
        (column_id, row[start:end])
        for (column_id, _, start), end in zip(pairs, [*ends, len(row)], strict=True)
    ]


def stored_columns(table: Table, row: Datums, *, new_collations: bool) -> Datums:
    """Leave out what TiKV's value doesn't hold: columns of the key, and computed ones."""
    left_out = {HANDLE_ID} | {column.id for column in table.columns if column.virtual}
    if table.handle_column is not None:
        left_out.add(table.handle_column.id)
    elif table.handle_kind == "common":
        index = table.primary_index
        assert index is not None
        whole = {name for name, _, length in index.columns if length == WHOLE_COLUMN}
        left_out |= {
            column.id
            for column, _ in handle_columns(table)
            if column.name in whole and not (new_collations and column.kind == "text")
        }
    return {column_id: datum for column_id, datum in row.items() if column_id not in left_out}


def encode_version_1(row: Datums) -> bytes:
    """Encode a row as pairs of column id and datum."""
    made = b"".join(
        bytes((VARINT,)) + encode_varint(column_id) + datum for column_id, datum in row.items()
    )
    return made or bytes((NIL,))


def encode_version_2(row: Datums) -> bytes:
    """Encode a row without the flags of its datums."""
    nulls = sorted(column_id for column_id, datum in row.items() if datum[0] == NIL)
    ids = sorted(row.keys() - set(nulls))
    values = [_value(row[column_id]) for column_id in ids]
    ends = [sum(map(len, values[: number + 1])) for number in range(len(values))]
    is_large = max([0, *ids, *nulls]) > _LARGE_ID or bool(ends and ends[-1] > _LARGE_BYTES)
    id_format, end_format = ("I", "I") if is_large else ("B", "H")
    head = struct.pack("<BBHH", 0x80, is_large, len(ids), len(nulls))
    layout = f"<{len(ids) + len(nulls)}{id_format}{len(ends)}{end_format}"
    return head + struct.pack(layout, *ids, *nulls, *ends) + b"".join(values)


def _value(datum: bytes) -> bytes:
    flag = datum[0]
    if flag in (COMPACT, BYTES):
        value = decode_datum(datum)[0].value
        assert isinstance(value, bytes)
        return value
    if flag in (VARINT, UVARINT):
        number = decode_datum(datum)[0].value
        assert isinstance(number, int)
        is_signed = flag == VARINT
        for size in (1, 2, 4):
            low, high = (
                (-(1 << size * 8 - 1), 1 << size * 8 - 1) if is_signed else (0, 1 << size * 8)
            )
            if low <= number < high:
                return number.to_bytes(size, "little", signed=is_signed)
        return number.to_bytes(8, "little", signed=is_signed)
    return datum[1:]  # floats, decimals, JSON and vectors have the same bytes behind the flag
