"""A Parquet file of the lake while it is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from etl.lake._names import COMMIT_TIME, COMMIT_TS, POS, START_TS
from relay.archive import LakeFile
from relay.counted import Counted
from relay.storage import Sink, Storage

__all__ = ["FileWriter", "Place"]

_DICTIONARY_BYTES = 16 * 2**20
"""A column's dictionary in one row group may be so large: old values repeat new ones, and so cost an index."""
_ASCENDING = (COMMIT_TS, COMMIT_TIME, START_TS, POS)
_LEVEL = 1  # of zstd; the dictionaries do most of it


@dataclass(frozen=True, slots=True)
class Place:
    """What a file holds: LakeFile's fields of these names."""

    path: str
    schema: str
    table: str
    table_id: int
    schema_version: int
    day: str


class FileWriter:
    """Writes a file, a row group at a time. It is seen, whole, when `publish` has returned."""

    def __init__(self, storage: Storage, place: Place, schema: pa.Schema) -> None:
        self._place = place
        self._sink: Sink = storage.new_whole_file(place.path)
        self._sink.__enter__()
        self._counting = Counted(self._sink)
        self._rows = 0
        self._writer: Any = pq.ParquetWriter(
            pa.PythonFile(self._counting, mode="w"),
            schema,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=[name for name in _leaves(schema) if name not in _ASCENDING],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in _ASCENDING if name in schema.names},
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            # Without Arrow's own schema beside Parquet's: every reader sees the same types.
            store_schema=False,
        )

    def write(self, rows: pa.Table) -> None:
        """A row group."""
        if rows.num_rows:
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._rows += rows.num_rows

    def publish(self) -> LakeFile:
        """Have it whole, durable and seen. Raises FileExistsError, OSError."""
        try:
            self._writer.close()
        except BaseException as error:
            self.abandon(type(error), error, error.__traceback__)
            raise
        self._sink.__exit__(None, None, None)
        place, counting = self._place, self._counting
        return LakeFile(
            place.path, counting.written, self._rows, counting.crc32c, place.schema, place.table, place.table_id,
            place.schema_version, place.day,
        )  # fmt: skip

    def abandon(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Leave no file behind."""
        with contextlib.suppress(Exception):  # it has failed already, or is about to
            self._writer.close()
        self._writer.is_open = False  # else it writes once more when it is forgotten
        self._sink.__exit__(kind, error, trace)


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns as Parquet names them."""
    found = []
    for entry in schema:
        if pa.types.is_map(entry.type):
            found += [f"{entry.name}.key_value.{part}" for part in ("key", "value")]
        else:
            found.append(entry.name)
    return found
