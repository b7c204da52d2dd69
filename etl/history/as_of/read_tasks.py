"""Define the tasks of a query: what each worker reads. They are sent to every worker."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, overload
from zlib import crc32

import numpy as np
import pyarrow as pa
import zstandard

from sluice.etl.history.as_of.lineage import TableGroup
from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.etl.history.as_of.versions import TableVersion
from sluice.relay import Part
from sluice.tidb.ddl_job import FinishedRowMove

PIECES = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("table_id", pa.int64()),
        pa.field("task", pa.int32()),
        pa.field("number", pa.int32()),
        pa.field("rows", pa.binary()),
    ]
)
"""Rows on their way to their bucket: an Arrow IPC stream of some of a snapshot's rows, or of
changed images. In a bucket they count in the order of `step`, task and number.
"""
SNAPSHOT_STEP = -1


def step_of(stretch: int) -> int:
    """Return the step of changes between two breaks.

    The next one is that of rows which DDL at the second break keeps.
    """
    return 2 * stretch


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """A chunk of a snapshot's rows."""

    table_id: int
    chunk: Mapping[str, Any]
    bytes: int


@dataclass(frozen=True, slots=True)
class SavedRows:
    """Rows of a snapshot that changes touch, as a file of the query.

    See `sluice.etl.history.as_of.untouched`.
    """

    table_id: int
    url: str
    path: str
    about: Mapping[str, Any]
    """The file's size and checksum; see `sluice.etl.history.as_of.result_files`."""
    bytes: int


@dataclass(frozen=True, slots=True)
class WindowParts:
    """Changes of a window that may be about wanted tables."""

    parts: tuple[Part, ...]
    moved: tuple[FinishedRowMove, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """The changes of consecutive windows after `after_ts` through `until_ts` (TSO)."""

    windows: tuple[WindowParts, ...]
    after_ts: int
    until_ts: int
    counted: tuple[tuple[int, int, tuple[WindowParts, ...]], ...] = ()
    """Windows behind a TSO, by job of DDL that emptied partitions before the first of `windows`."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionSurvivors:
    """Changes before a DDL that drops partitions, some of which made rows that stay."""

    commit_ts: int
    windows: tuple[WindowParts, ...]
    bytes: int = 0


ReadTask = SnapshotRows | SavedRows | WindowChanges | PartitionSurvivors


class PackedTasks(Sequence[ReadTask]):
    """A plan's tasks as a worker has them: each is unpacked when it is asked for.

    A worker is sent the whole plan for each task that it does, and does one.
    """

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed

    @classmethod
    def pack(cls, tasks: Sequence[ReadTask]) -> Self:
        """Pack tasks, each by itself."""
        return cls([zstandard.compress(pickle.dumps(task)) for task in tasks])

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, place: int) -> ReadTask: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ReadTask]: ...

    def __getitem__(self, place: int | slice) -> ReadTask | Sequence[ReadTask]:
        if isinstance(place, slice):
            return PackedTasks(self._packed[place])
        task: ReadTask = pickle.loads(zstandard.decompress(self._packed[place]))  # noqa: S301 own
        return task


@dataclass(frozen=True, slots=True)
class GroupBuckets:
    """A family's part of the buckets."""

    family: TableGroup
    first: int
    count: int

    def of(self, version: TableVersion, rows: pa.Table) -> np.ndarray:
        """Return the bucket of each row."""
        if self.count == 1:
            return np.full(rows.num_rows, self.first, np.int32)
        return key_hashes(version, rows) % self.count + self.first


def key_hashes(version: TableVersion, rows: pa.Table) -> np.ndarray:
    """Return 32 bits for each row, equal for rows that a change of one may concern."""
    by_name = {column.name: column for column in version.columns}
    columns = [by_name[name] for name in version.dealt_by]
    keys = row_bytes(columns, {column.name: rows[column.name] for column in columns}).to_pylist()
    return np.fromiter((crc32(key) for key in keys), np.int64, rows.num_rows)


@dataclass(frozen=True, slots=True)
class TimeTravelPlan:
    """Tables as of some moments, and everything they are computed from."""

    log_url: str
    snapshot: Mapping[str, Any] | None
    """The spec that opens the snapshot as a source of a copy; None where no snapshot is read."""
    families: tuple[GroupBuckets, ...]
    tasks: Sequence[ReadTask]
    ignored: frozenset[int] = frozenset()
    """Commit timestamps of transactions that are left out."""
    by_table: Mapping[int, GroupBuckets] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found = {table_id: one for one in self.families for table_id in one.family.ids}
        object.__setattr__(self, "by_table", found)

    def __reduce__(self) -> tuple[Any, ...]:
        tasks = PackedTasks.pack(self.tasks)
        return type(self), (self.log_url, self.snapshot, self.families, tasks, self.ignored)

    @property
    def buckets(self) -> int:
        """Return how many there are in all."""
        return sum(one.count for one in self.families)

    def family_of(self, bucket: int) -> GroupBuckets:
        """Return the group that a bucket belongs to."""
        return next(one for one in self.families if one.first <= bucket < one.first + one.count)
