"""Compute rows that no change touches where they are read, without a shuffle.

Most rows of a large table are as they were in its snapshot. Distributing those to buckets costs
more than all else, and what a dead executor had distributed is to be read again. So where a
snapshot is large, and the log behind it isn't, tables are computed by three jobs:

1. Workers read the changes, and return the hashes of the keys that these touch.
2. A task for each file of the snapshot gives the results of its untouched rows, and saves the
   others as a file of the query. A task that is over counts, whatever becomes of its executor.
3. What was saved and the changes are distributed to buckets, as in a plan of little data.

A row counts as touched if a change has a key with the same 27 bits of a hash: some rows too many,
none too few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import zstandard

from sluice.etl.history.as_of.aggregations import AggregateResult, Aggregation, from_ipc, to_ipc
from sluice.etl.history.as_of.bucket import compute_untouched
from sluice.etl.history.as_of.read_planner import count_buckets
from sluice.etl.history.as_of.read_tasks import (
    GroupBuckets,
    ReadTask,
    SavedRows,
    SnapshotRows,
    TimeTravelPlan,
    key_hashes,
)
from sluice.etl.history.as_of.result_files import ResultFiles, result_batch, write_stream
from sluice.etl.history.as_of.shuffle import TaskRows, task_rows
from sluice.etl.history.as_of.versions import TableVersion
from sluice.etl.history.as_of.worker import marked_errors
from sluice.etl.spark.worker_tuning import column_values, worker_function

if TYPE_CHECKING:  # workers load no client of Spark
    from sluice.etl.spark.job_calls import WorkerFunction

__all__ = ["FindTouched", "FinishUntouched", "TouchedKeys", "untouched_first"]

_MIN_SNAPSHOT_BYTES = 256 << 20
"""Rows of less are distributed in about the time that two more jobs take."""
_MIN_SNAPSHOT_SHARE = 4
"""The snapshot's bytes in memory to those of the log's files, which is read twice."""
_MAX_CHANGE_TASKS = 256
"""Each returns up to half a MiB of hashes through Spark's driver."""
_MAX_FILLED = 1 / 8
"""With more bits set too many rows would count as touched."""
_HASH_BITS = 27
"""A set of keys takes 16 MiB of a worker."""
_FILE_ROW_BYTES = 64 << 20
_SAVED = -2
"""The moment (TSO) of a result that names a file of touched rows."""


class RunTasks(Protocol):
    """Run a function in workers, a task for each number below `count`; yield its results."""

    def __call__(self, function: WorkerFunction, count: int) -> Iterator[AggregateResult]: ...


class TouchedKeys:
    """A set of keys of a plan's groups, by bits of their hashes."""

    def __init__(self, packed: bytes | None = None) -> None:
        """Make an empty set, or the one that `pack` returned."""
        empty = np.zeros(1 << _HASH_BITS - 3, np.uint8)
        self._bits = (
            empty if packed is None else np.frombuffer(zstandard.decompress(packed), np.uint8)
        )

    def pack(self) -> bytes:
        """Return the set as bytes."""
        return zstandard.compress(self._bits.tobytes())

    def add(self, places: np.ndarray) -> None:
        """Add `key_places`."""
        bits = np.left_shift(np.uint8(1), (places & 7).astype(np.uint8))
        np.bitwise_or.at(self._bits, places >> 3, bits)

    def have(self, places: np.ndarray) -> np.ndarray:
        """Return for each of `key_places` whether it is in the set."""
        found: np.ndarray = self._bits[places >> 3] >> (places & 7).astype(np.uint8) & 1 == 1
        return found

    @property
    def filled(self) -> float:
        """Return the share of bits that are set."""
        return float(np.bitwise_count(self._bits).sum(dtype=np.int64)) / (1 << _HASH_BITS)


def key_places(buckets: GroupBuckets, version: TableVersion, rows: pa.Table) -> np.ndarray:
    """Return each row's place in `TouchedKeys`; equal keys of two groups have different ones."""
    mixed = key_hashes(version, rows) + buckets.first * 0x9E3779B1
    return (mixed & 0xFFFFFFFF) >> 32 - _HASH_BITS


@dataclass(frozen=True, slots=True)
class FindTouched:
    """Run in Spark's Python workers: tasks of changes become the places of their keys."""

    plan: TimeTravelPlan

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked_errors():
            for number in column_values(batches):
                found = [
                    np.unique(key_places(each.buckets, each.version, each.rows))
                    for each in task_rows(self.plan, number)
                    if each.buckets.family.is_partitioned
                ]
                if found:
                    # differences of sorted numbers take little once they are compressed
                    places = np.diff(np.unique(np.concatenate(found)), prepend=0)
                    payload = to_ipc(pa.table({"place": places.astype(np.uint32)}))
                    yield result_batch(AggregateResult(0, "", payload))


@dataclass(frozen=True, slots=True)
class FinishUntouched:
    """Run in Spark's Python workers: files of a snapshot become RESULTS of untouched rows.

    Others are saved in `folder` of the archive at `url`. `touched`: TouchedKeys, packed.
    """

    plan: TimeTravelPlan
    finish: Aggregation
    touched: bytes
    url: str
    folder: str

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        touched = TouchedKeys(self.touched)
        with marked_errors():
            for number in column_values(batches):
                for part in _joined(task_rows(self.plan, number)):
                    for result in self._results(touched, part):
                        yield result_batch(result)

    def _results(self, touched: TouchedKeys, part: TaskRows) -> Iterator[AggregateResult]:
        family, table_id = part.buckets.family, part.version.table.id
        is_touched = touched.have(key_places(part.buckets, part.version, part.rows))
        rows = part.rows
        if is_touched.any():
            saved = rows.filter(pa.array(is_touched)).combine_chunks()
            path, about = write_stream(
                self.url, self.folder, saved.schema, saved.to_batches(), "zstd"
            )
            task = {"table_id": table_id, "path": path, "about": about, "bytes": saved.nbytes}
            yield AggregateResult(_SAVED, "", json.dumps(task).encode())
            rows = rows.filter(pa.array(~is_touched))
        yield from self.finish(family, compute_untouched(family, table_id, rows.combine_chunks()))


def untouched_first(
    plan: TimeTravelPlan, finish: Aggregation, files: ResultFiles, run: RunTasks
) -> Generator[AggregateResult, None, TimeTravelPlan]:
    """Yield the results of untouched rows; return the plan of what is left.

    That is all of it where this way isn't the faster one. Raises what executing a plan does.
    """
    changes = [task for task in plan.tasks if not isinstance(task, SnapshotRows)]
    suited = [task for task in plan.tasks if _is_suited(plan, task)]
    if not _is_worthwhile(suited, changes):
        return plan
    touched = TouchedKeys()
    if changes:
        for result in run(FindTouched(replace(plan, tasks=tuple(changes))), len(changes)):
            for batch in from_ipc(result.payload):
                touched.add(np.cumsum(batch.column(0).to_numpy(), dtype=np.int64))
    if touched.filled > _MAX_FILLED:
        return plan
    url, folder = files.open_folder()
    function = FinishUntouched(
        replace(plan, tasks=tuple(suited)), files.of(finish), touched.pack(), url, folder
    )
    saved: list[ReadTask] = []
    yield from files.read(_sorted_out(run(function, len(suited)), url, saved.append))
    tasks = [*saved, *(task for task in plan.tasks if not _is_suited(plan, task))]
    return replace(
        plan,
        families=count_buckets((one.family for one in plan.families), tasks),
        tasks=tuple(tasks),
    )


def _is_suited(plan: TimeTravelPlan, task: ReadTask) -> bool:
    """Return whether a task's untouched rows needn't be in a bucket."""
    return isinstance(task, SnapshotRows) and plan.by_table[task.table_id].family.is_partitioned


def _is_worthwhile(suited: Sequence[ReadTask], changes: Sequence[ReadTask]) -> bool:
    size, log_bytes = (sum(task.bytes for task in tasks) for tasks in (suited, changes))
    return len(changes) <= _MAX_CHANGE_TASKS and size >= max(
        _MIN_SNAPSHOT_BYTES, _MIN_SNAPSHOT_SHARE * log_bytes
    )


def _sorted_out(
    results: Iterable[AggregateResult], url: str, save: Callable[[SavedRows], None]
) -> Iterator[AggregateResult]:
    """Yield the results that aren't about saved rows, and give those to `save`."""
    for result in results:
        if result.moment == _SAVED:
            save(SavedRows(url=url, **json.loads(result.payload)))
        else:
            yield result


def _joined(parts: Iterable[TaskRows]) -> Iterator[TaskRows]:
    """Join the parts of a file, so that its results are few and large."""
    held: list[TaskRows] = []
    for part in parts:
        held.append(part)
        if sum(each.rows.nbytes for each in held) >= _FILE_ROW_BYTES:
            yield held[0]._replace(rows=pa.concat_tables([each.rows for each in held]))
            held = []
    if held:
        yield held[0]._replace(rows=pa.concat_tables([each.rows for each in held]))
