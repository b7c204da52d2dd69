"""Compute the checksum of a row as TiDB and TiCDC do, from the values of its columns.

It is CRC-32 (IEEE) over the values in the order of the columns' ids, all little-endian:

    whole numbers, YEAR, BIT, ENUM, SET    8 bytes; of an ENUM its index, of a SET its bitmask
    FLOAT, DOUBLE                          the 8 bytes of a double
    VECTOR                                 u32 dimensions, 4 bytes of a float each
    other types                            u32 length, text or bytes; TIMESTAMP in UTC
    NULL                                   nothing

The source is `appendDatumForChecksum` in TiDB's pkg/util/rowcodec/common.go. Newer TiDBs store
another checksum, of the row's raw bytes, which TiCDC compares and then replaces by this one.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.messages.avro_binary import doubles
from sluice.etl.changes.messages.json_text import row_texts
from sluice.etl.changes.messages.message import BINARY, Images, packed, sizes
from sluice.tidb.schema import Column

_NOTHING = pa.scalar(b"", BINARY)


def row_checksums(columns: Sequence[Column], image: Images, count: int) -> npt.NDArray[np.uint32]:
    """Return the checksum of each of `count` rows. TIMESTAMPs must be in UTC."""
    parts = [_encoded(column, image[column.name]) for column in in_id_order(columns)]
    rows = row_texts(*parts, count=count)
    return np.fromiter((zlib.crc32(row.as_buffer() or b"") for row in rows), np.uint32, count)


def in_id_order(columns: Sequence[Column]) -> list[Column]:
    """Return columns by their ids: by the order in which they were added."""
    return sorted(columns, key=lambda column: column.id)


def _encoded(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    match column.kind:
        case "int" | "year" | "bit" | "enum" | "set":
            numbers = np.asarray(pc.fill_null(array, 0))
            unsigned = numbers if numbers.dtype == np.uint64 else numbers.astype(np.int64)
            found = packed(unsigned.view("<u8"))
        case "float" | "double":
            found = doubles(pc.fill_null(array, 0).cast(pa.float64()))
        case "vector":
            found = pa.array([None if v is None else _floats(v) for v in array.to_pylist()], BINARY)
        case _:
            raw = array.cast(BINARY)
            found = join(packed(sizes(raw).astype("<u4")), raw)
    return pc.if_else(array.is_valid(), found, _NOTHING) if array.null_count else found


def _floats(text: str) -> bytes:
    numbers = json.loads(text)
    return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
