"""Write a Parquet file of the lake."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.etl.history.lake._names import COMMIT_TIME, COMMIT_TS, POS, START_TS
from sluice.relay.archive import LakeFile
from sluice.relay.checksum_writer import ChecksumWriter
from sluice.relay.storage import ByteWriter, Storage

__all__ = ["LakeFileSpec", "LakeFileWriter"]

_DICTIONARY_BYTES = 16 * 2**20
"""A column's dictionary in one row group may be so large: old values repeat new ones, and so cost
an index.
"""
_ASCENDING = (COMMIT_TS, COMMIT_TIME, START_TS, POS)
_MINIBLOCK_ROWS = 32  # numbers that Parquet's DELTA_BINARY_PACKED keeps in the same width
_COMPRESSION_LEVEL = 1  # of zstd; the dictionaries do most of it


@dataclass(frozen=True, slots=True)
class LakeFileSpec:
    """Properties of a file that is written: LakeFile's fields of these names."""

    path: str
    schema: str
    table: str
    table_id: int
    schema_version: int
    day: str


class LakeFileWriter:
    """Write a file, a row group at a time. It is seen, whole, when `publish` has returned."""

    def __init__(self, storage: Storage, place: LakeFileSpec, first: pa.Table) -> None:
        """Create the file; `first` has rows of the first row group.

        They aren't written by this; the columns' encodings are chosen by them.
        """
        schema, steps = first.schema, _delta_encoded_columns(first)
        self._place = place
        self._sink: ByteWriter = storage.new_whole_file(place.path)
        self._sink.__enter__()
        self._counting = ChecksumWriter(self._sink)
        self._rows = 0
        self._writer: Any = pq.ParquetWriter(
            pa.PythonFile(self._counting, mode="w"),
            schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=[name for name in _leaves(schema) if name not in steps],
            column_encoding=dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            # Without Arrow's own schema beside Parquet's: every reader sees the same types.
            store_schema=False,
        )

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        if rows.num_rows:
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._rows += rows.num_rows

    def publish(self) -> LakeFile:
        """Finish the file, sync it and give it its name. Raises FileExistsError, OSError."""
        try:
            self._writer.close()
        except BaseException as error:
            self.abandon(type(error), error, error.__traceback__)
            raise
        self._sink.__exit__(None, None, None)
        place, counting = self._place, self._counting
        return LakeFile(
            place.path,
            counting.written,
            self._rows,
            counting.crc32c,
            place.schema,
            place.table,
            place.table_id,
            place.schema_version,
            place.day,
        )

    def abandon(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Leave no file behind."""
        with contextlib.suppress(Exception):  # it has failed already, or is about to
            self._writer.close()
        self._writer.is_open = False  # else it writes once more when it is forgotten
        self._sink.__exit__(kind, error, trace)


def _delta_encoded_columns(rows: pa.Table) -> list[str]:
    """Return the columns that are smaller as differences from row to row than in a dictionary.

    They are what ascends, and whole numbers such as ids, judged by these rows.
    """
    numbers = [
        name for name in rows.schema.names if pa.types.is_int64(rows.schema.field(name).type)
    ]
    return [
        name
        for name in rows.schema.names
        if name in _ASCENDING or (name in numbers and _deltas_are_smaller(rows[name]))
    ]


def _deltas_are_smaller(numbers: pa.ChunkedArray) -> bool:
    values = numbers.drop_null().to_numpy()
    distinct = pc.count_distinct(numbers).as_py()
    whole = len(values) // _MINIBLOCK_ROWS * _MINIBLOCK_ROWS
    if not whole:
        return False
    steps = (
        np.diff(values[:whole], prepend=values[0]).astype(np.float64).reshape(-1, _MINIBLOCK_ROWS)
    )
    as_steps = np.log2(np.ptp(steps, axis=1) + 1).sum() * _MINIBLOCK_ROWS / 8
    return bool(as_steps < distinct * 8 + len(values) * math.log2(distinct) / 8)


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the columns as Parquet names them."""
    found = []
    for entry in schema:
        if pa.types.is_map(entry.type):
            found += [f"{entry.name}.key_value.{part}" for part in ("key", "value")]
        else:
            found.append(entry.name)
    return found
