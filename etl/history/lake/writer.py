"""Write windows as files of the lake."""

from __future__ import annotations

import contextlib
import itertools
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import numpy as np
import pyarrow as pa

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.history.lake import _unreadable
from sluice.etl.history.lake._definitions import LakeSchemaCursor
from sluice.etl.history.lake._file import LakeFileSpec, LakeFileWriter
from sluice.etl.history.lake._names import folder, table_folder
from sluice.etl.history.lake._rows import LakeLayout
from sluice.etl.history.lake._versions import LakeSchemaVersions
from sluice.relay import PART_SCHEMA, WindowRecord, iter_parts
from sluice.relay.archive import LakeFile
from sluice.relay.storage import Storage
from sluice.tidb import tso
from sluice.tidb.schema import Table

__all__ = ["BUFFER_BYTES", "LakeWriter", "write_lake"]

BUFFER_BYTES = 96 * 2**20
"""The most bytes of rows, as TiDB wrote them, that wait to become row groups. Memory is some four
times that at most.
"""
_DAY_MS = 86_400_000
_OPEN_FILES_THRESHOLD = 256

_Key = tuple[str, int, str]
"""A file's key: its table's folder, version, day."""
_Piece = tuple[Table, LakeLayout, pa.Table]
"""Changes, and the definition they are by."""


@dataclass(slots=True)
class _PendingRows:
    """Changes of one table, version and day that are no row group yet."""

    place: LakeFileSpec
    pieces: list[_Piece] = field(default_factory=list)
    bytes: int = 0


class LakeWriter:
    """Write the lake's files of one segment, one a table, version and UTC day.

    Used as a context: what isn't finished when it ends leaves no file behind. Files are seen once
    `finish` has returned.
    """

    def __init__(
        self,
        storage: Storage,
        segment: tuple[int, int],
        token: str,
        buffer_bytes: int = BUFFER_BYTES,
        *,
        old_values: bool = True,
    ) -> None:
        """Prepare a writer to the archive's `storage`.

        `segment`: its `(lo, hi]` (TSO); `token`: one that no other attempt has; `old_values`: see
        `LakeLayout.rows`.
        """
        self._storage = storage
        self._name = f"{segment[0]:020d}-{segment[1]:020d}-{token}.parquet"
        self._buffer_bytes = buffer_bytes
        self._old_values = old_values
        self._definitions = LakeSchemaCursor()
        self._versions = LakeSchemaVersions(storage)
        self._waiting: dict[_Key, _PendingRows] = {}
        self._bytes = 0
        self._layouts: dict[int, tuple[Table, LakeLayout, int]] = {}
        self._files: dict[_Key, LakeFileWriter] = {}

    def __enter__(self) -> LakeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        files, self._files = self._files, {}
        for file in files.values():
            file.abandon(kind or RuntimeError, error or RuntimeError("not finished"), trace)

    def add(self, window: WindowRecord, batches: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Add the next window, and its changes: in PART_SCHEMA, in commit order across all batches.

        Raises ChangeError of a definition that makes no sense, RelayCorruptError, OSError.
        """
        self.enter(window)
        for batch in batches:
            self.take(batch)
        self.leave()

    def enter(self, window: WindowRecord) -> None:
        """Begin with the next window, of which `take` gets the changes, until `leave`.

        Raises as `add`.
        """
        self._definitions.enter(RecordedSchema.from_window(window))

    def take(self, batch: pa.Table | pa.RecordBatch) -> None:
        """Add the next changes of the window. Raises as `add`."""
        for stretch in self._definitions.ranges(batch):
            for table_id, day, changes in _by_table_and_day(stretch):
                self._add(table_id, day, changes)

    def leave(self) -> None:
        """End the window. Raises as `add`."""
        self._definitions.leave()

    def finish(self) -> tuple[LakeFile, ...]:
        """Write what waits, and have all files seen. Raises as `add`, and FileExistsError."""
        found = []
        for key in list(self._waiting):
            self._flush(key)
            if key in self._files:  # one by one: there may be thousands of tables
                found.append(self._files.pop(key).publish())
        found += [self._files.pop(key).publish() for key in sorted(self._files)]
        return tuple(sorted(found, key=lambda file: file.path))

    def _add(self, table_id: int, day: str, changes: pa.Table) -> None:
        table = self._definitions.get(table_id)
        if table is None:
            reason = f"no window record describes table {table_id}: it was truncated before"
            self._write_unreadable(day, _unreadable.unreadable(changes, reason))
            return
        layout, version = self._layout(table)
        key = (table_folder(table.schema_name, table.name), version, day)
        waiting = self._waiting.get(key)
        if waiting is None:
            place = LakeFileSpec(
                f"{folder(*key)}/{self._name}",
                table.schema_name,
                table.name,
                table.id,
                version,
                day,
            )
            waiting = self._waiting[key] = _PendingRows(place)
        waiting.pieces.append((table, layout, changes))
        waiting.bytes += changes.nbytes
        self._bytes += changes.nbytes
        if self._bytes > self._buffer_bytes:
            while self._bytes > self._buffer_bytes // 2:
                self._flush(max(self._waiting, key=lambda key: self._waiting[key].bytes))

    def _layout(self, table: Table) -> tuple[LakeLayout, int]:
        found = self._layouts.get(table.id)
        if found is None or found[0] is not table:
            layout = LakeLayout.for_table(table)
            found = (
                table,
                layout,
                self._versions.of(table, layout, self._definitions.schema_version),
            )
            self._layouts[table.id] = found
        return found[1], found[2]

    def _flush(self, key: _Key) -> None:
        waiting = self._waiting.pop(key)
        self._bytes -= waiting.bytes
        rows: list[pa.Table] = []
        for table, layout, changes in _runs(waiting.pieces):
            for read, unread in _unreadable.readable(
                changes, partial(layout.rows, table, old_values=self._old_values)
            ):
                if read is not None:
                    rows.append(read)
                if unread is not None:
                    self._write_unreadable(key[2], unread)
        if rows:
            self._write(key, waiting.place, pa.concat_tables(rows))

    def _write(self, key: _Key, place: LakeFileSpec, rows: pa.Table) -> None:
        if key not in self._files:
            if len(self._files) == _OPEN_FILES_THRESHOLD:
                _raise_open_files()
            self._files[key] = LakeFileWriter(self._storage, place, rows)
        self._files[key].write(rows)

    def _write_unreadable(self, day: str, rows: pa.Table) -> None:
        key = (_unreadable.FOLDER, 0, day)
        self._write(
            key,
            LakeFileSpec(f"{folder(*key)}/{self._name}", "", _unreadable.FOLDER, 0, 0, day),
            rows,
        )


def _raise_open_files() -> None:
    """Raise this process's limit of open files to what it may ask for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def write_lake(
    relay: Storage,
    archive: Storage,
    windows: Sequence[WindowRecord],
    token: str,
    buffer_bytes: int = BUFFER_BYTES,
) -> tuple[LakeFile, ...]:
    """Write the lake's files of a segment made of `windows`, with their parts in `relay`.

    Runs anywhere; memory is bounded by `buffer_bytes`. Raises as LakeWriter.
    """
    with LakeWriter(archive, (windows[0].lo, windows[-1].hi), token, buffer_bytes) as writer:
        for window in windows:
            writer.add(window, iter_parts(relay, window.parts))
        return writer.finish()


def _by_table_and_day(changes: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, str, pa.Table]]:
    """Yield the changes of each table and UTC day, in their order."""
    if isinstance(changes, pa.RecordBatch):
        changes = pa.Table.from_batches([changes], PART_SCHEMA)
    days = (changes["commit_ts"].to_numpy() >> tso.LOGICAL_BITS) // _DAY_MS
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for first, end in itertools.pairwise(cuts):
        day = str(np.datetime64(int(days[first]), "D"))
        stretch = changes.slice(first, end - first)
        ids = stretch["table_id"].to_numpy()
        order = np.argsort(ids, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(ids[order]) != 0))
        for begin, stop in itertools.pairwise([*begins.tolist(), len(order)]):
            yield int(ids[order[begin]]), day, stretch.take(pa.array(order[begin:stop]))


def _runs(pieces: list[_Piece]) -> Iterator[_Piece]:
    """Yield pieces that follow one another and have one definition, together."""
    for _, run in itertools.groupby(pieces, key=lambda piece: id(piece[0])):
        found = list(run)
        yield found[0][0], found[0][1], pa.concat_tables([changes for _, _, changes in found])
