"""Hash rows for partitions as TiCDC does, so that each key stays in its partition after a move.

The hash is CRC-32 of schema and table, XORed with the CRC-32 of the name and the text of each
column that decides. The partition is the hash modulo the number of partitions. Since XOR has no
order, neither have the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.messages.json_text import NULL, float_digits
from sluice.etl.changes.messages.message import BINARY, Images, RowBatch, digits, handle_key
from sluice.etl.changes.messages.routing import BY_KEY, Dispatch
from sluice.tidb.schema import Column
from sluice.tidb.table_name import TableName

Hashes = npt.NDArray[np.uint32]


class DispatchError(SluiceError, ValueError):
    """A table lacks a column that is to decide on partitions."""

    hint = "name columns of the table in [kafka] dispatch, or give it a rule in [kafka.dispatches]"


def table_hash(name: TableName) -> int:
    """Return the hash of a table without columns."""
    return crc32(name.table.encode(), crc32(name.schema.encode()))


def row_hashes(batch: RowBatch, dispatch: Dispatch) -> tuple[Hashes, Hashes]:
    """Return (of the old images, of the new images); of a missing image as of the other.

    A table without a key is hashed by its name alone. Raises DispatchError.
    """
    columns = _columns(batch, dispatch)
    of_table = table_hash(TableName(batch.table.schema_name, batch.table.name))
    old, new = (
        _hashes(of_table, columns, image, len(batch)) if image else None
        for image in (batch.old, batch.new)
    )
    if old is None and new is None:  # a table without stored columns
        old = np.full(len(batch), of_table, np.uint32)
    first, last = (old if old is not None else new), (new if new is not None else old)
    assert first is not None
    assert last is not None
    return first, last


def _columns(batch: RowBatch, dispatch: Dispatch) -> list[Column]:
    if dispatch.kind == BY_KEY:
        key = handle_key(batch.table)
        return [column for column in batch.columns if column.name in key]
    by_name = {column.name.lower(): column for column in batch.columns}
    wanted = [name.lower() for name in dispatch.columns]
    missing = [name for name in wanted if name not in by_name]
    if missing:
        hidden = {column.name.lower() for column in batch.table.columns if not column.public}
        why = ": [[filter.columns]] leaves it out" if missing[0] in hidden else ""
        raise DispatchError(
            f"table {batch.table.full_name!r} has no column {missing[0]!r}, which is to decide on"
            f" partitions{why}"
        )
    return [by_name[name] for name in dict.fromkeys(wanted)]


def _hashes(of_table: int, columns: Sequence[Column], image: Images, count: int) -> Hashes:
    found = np.full(count, of_table, np.uint32)
    for column in columns:
        seed = crc32(column.name.encode())
        texts = _texts(column, image[column.name]).to_pylist()
        hashes = (crc32(NULL if text is None else text, seed) for text in texts)
        found ^= np.fromiter(hashes, np.uint32, count)
    return found


def _texts(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    """Return values as TiCDC's text: ENUM and SET as numbers, floats without an exponent."""
    match column.kind:
        case "int" | "year" | "bit" | "enum" | "set":
            return digits(array)
        case "float" | "double":
            return float_digits(array)
        case _:
            return array.cast(BINARY)
