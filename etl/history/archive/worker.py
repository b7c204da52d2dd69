"""Make archive segments of windows in Spark's Python workers.

A worker reads the windows' changes once, and writes both products of it, the log and the lake.
Spark finds the function by this module's path, so nothing is imported here that the driver alone
needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.etl.history.archive.plan import windows_of
from sluice.etl.history.lake import LakeWriter
from sluice.etl.spark.worker_tuning import raise_nofile_limit, text_batch, worker_function
from sluice.relay import WindowRecord
from sluice.relay.archive import LakeFile, write_log
from sluice.relay.storage import open_storage

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

TASK_SCHEMA = pa.schema(
    [("token", pa.string()), ("records", pa.binary()), ("binlog_bytes", pa.int64())]
)
"""A segment to be made: the token of its files, its windows' records (see `SegmentPlan`), and the
size of the relay log's parts it is made of.
"""


@dataclass(frozen=True, slots=True)
class BuildSegments:
    """Run in Spark's Python workers: make a segment for each of its rows.

    The rows are in TASK_SCHEMA, the segments JSON in TEXTS. Nothing of a segment is in
    here, so that it is the same object from job to job.
    """

    source_url: str
    """The URL of the windows' parts: the relay log, or the archive itself."""
    archive_url: str
    lake: str = "all"
    """The setting `[archive] lake`."""

    @classmethod
    def from_settings(cls, settings: Settings, source_url: str) -> BuildSegments:
        """Make it from the settings, for windows whose parts are at `source_url`."""
        return cls(source_url, settings.archive_url, settings.archive.lake)

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        raise_nofile_limit()
        for batch in batches:
            for task in batch.to_pylist():
                answer = build_segment(self, task, f"{task['token']}.{context.taskAttemptId()}")
                yield text_batch(json.dumps(answer))


def build_segment(work: BuildSegments, task: Mapping[str, Any], token: str) -> dict[str, Any]:
    """Make a task's segment, durable but for the catalogue.

    Returns {"segment", "stages_ms"}: the segment and the durations of its stages. `token` goes into
    the names of its files. Raises relay errors, OSError, and errors of changes that the lake can't
    represent.
    """
    began = time.perf_counter()
    windows = windows_of(task["records"])
    source, archive = open_storage(work.source_url), open_storage(work.archive_url)
    files: tuple[LakeFile, ...] = ()
    lake_ms = 0.0
    if work.lake == "none":
        written = write_log(source, archive, windows, token)
    else:
        old_values = work.lake == "all"
        with LakeWriter(
            archive, (windows[0].lo, windows[-1].hi), token, old_values=old_values
        ) as writer:
            lake = _TeeToLake(writer, windows)
            written = write_log(source, archive, windows, token, seen=lake.take)
            files = lake.finish()
            lake_ms = lake.ms
    segment = replace(written.segment(files, task["binlog_bytes"]), token=task["token"])
    whole = (time.perf_counter() - began) * 1000
    return {"segment": segment.to_json(), "stages_ms": {"lake": lake_ms, "log": whole - lake_ms}}


class _TeeToLake:
    """Give the lake's writer what the log's has read. `ms`: how long the lake took."""

    def __init__(self, writer: LakeWriter, windows: Sequence[WindowRecord]) -> None:
        self._writer = writer
        self._windows = iter(windows)
        self._at: WindowRecord | None = None
        self.ms = 0.0

    def take(self, window: WindowRecord, changes: pa.RecordBatch) -> None:
        """Add the next changes, of the same window as those before or of a later one."""
        began = time.perf_counter()
        while self._at is not window:
            self._next_window()
        self._writer.take(changes)
        self.ms += (time.perf_counter() - began) * 1000

    def finish(self) -> tuple[LakeFile, ...]:
        """Return the files, when there are no more changes."""
        began = time.perf_counter()
        while self._next_window():
            pass
        files = self._writer.finish()
        self.ms += (time.perf_counter() - began) * 1000
        return files

    def _next_window(self) -> bool:
        """Go to the next window; return False if there is none."""
        if self._at is not None:
            self._writer.leave()
        self._at = next(self._windows, None)
        if self._at is not None:
            self._writer.enter(self._at)
        return self._at is not None
