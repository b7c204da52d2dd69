"""Write transactions to binlog files in the original Drainer's format, exactly once.

The format is `sluice.etl.changes.formats.binlog_file`. Data is synced before the savepoint moves,
and the savepoint has up to which byte the files are durable. Whatever went wrong, a run begins
with cutting off what lies behind that byte: a write that failed looks like one that is
still in the page cache. If the files have become shorter than that, data was lost and nothing is
written. A Drainer's files have no such savepoint: they are read to the last whole record.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sluice.etl.changes.formats.binlog_file import (
    COMPRESSED_SUFFIX,
    BinlogFileError,
    BinlogFileName,
    encode_record,
    list_files,
    new_name,
    split_records,
)
from sluice.etl.changes.steps import ScopedDdl, Step, TransactionDetail
from sluice.etl.changes.write_plans.file_binlog import ddl_message
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    Savepoint,
    SavepointFile,
    sync_folder,
)
from sluice.etl.downstream.sinks._binlog_sink import BinlogSink
from sluice.etl.downstream.sinks._file_maintenance import FileMaintenance
from sluice.etl.downstream.sinks._file_recovery import LogTail, find_tail
from sluice.etl.downstream.sinks.sink import ApplyError, TopicCounts
from sluice.etl.settings import File

_MAINTENANCE_INTERVAL_S = 3600.0


class FileSink(BinlogSink):
    """A folder of binlog files on a local disk, written by one process at a time."""

    write_plan = "file_binlog"

    def __init__(self, options: File, cluster_id: int, job: str = "") -> None:
        """Create the file sink; `job`: which job writes there, "" for a pipeline."""
        super().__init__(savepoint_file(options, cluster_id, job))
        self._folder = Path(options.dir).absolute()
        self._limit = options.max_file_bytes
        self._maintenance = FileMaintenance(
            self._folder,
            compress=options.compression == "gzip",
            retention_days=options.retention_days,
        )
        self._maintenance_due = 0.0
        self._lock: int | None = None
        self._file: int | None = None  # None when the newest file takes no more
        self._end = LogTail()
        self._within = False  # a record has begun and not ended

    @property
    def address(self) -> str:
        return str(self._folder)

    def close(self) -> None:
        self._maintenance.stop()
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._file = self._lock = None

    def recover(self) -> Checkpoint | None:
        """Lock the folder, cut off what was not finished, and find the last transaction in it."""
        self.close()
        self._within = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._savepoint.path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            found = self._savepoint.load()
            self._maintenance.clean_up()
            self._end = find_tail(self._folder, found)
            self._maintenance.keep_from = (found.place if found else None) or ""
            self._open_newest()
            if found is None or found.place is None:
                found = self._adopt(found)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise ApplyError(
                f"{error}", hint="[file] dir must be a folder that this user can write to"
            ) from error
        except BinlogFileError as error:
            raise ApplyError(str(error), hint=error.hint) from error
        self._checkpoint = found.checkpoint if found.checkpoint.commit_ts else None
        self._start_maintenance()
        return self._checkpoint

    def _adopt(self, found: Savepoint | None) -> Savepoint:
        """Write down where a folder ends that isn't known yet; what comes behind that is ours."""
        checkpoint = found.checkpoint if found else Checkpoint(0)
        if self._end.commit_ts > checkpoint.commit_ts:
            checkpoint = checkpoint.at(self._end.commit_ts)
        if self._file is not None:
            os.fdatasync(self._file)
        place = self._end.path.name if self._end.path else ""
        self._savepoint.save(checkpoint, place, self._end.offset)
        return Savepoint(checkpoint, place, self._end.offset)

    def _make_durable(self, step: Step) -> Mapping[str, TopicCounts]:
        if self._file is not None:
            os.fdatasync(self._file)
        return {}

    def _save(self, checkpoint: Checkpoint) -> None:
        place = self._end.path.name if self._end.path else ""
        self._savepoint.save(checkpoint, place, self._end.offset)
        self._maintenance.keep_from = place
        if time.monotonic() >= self._maintenance_due:
            self._start_maintenance()

    def _write_ddl(self, ddl: ScopedDdl) -> None:
        self._write_records(memoryview(encode_record(ddl_message(ddl))), TransactionDetail(1))

    def _write_records(self, data: memoryview, detail: TransactionDetail) -> None:
        """Append whole records, or a piece of one with more to come.

        A record that reaches the limit is a file's last.
        """
        more = detail.more
        if self._within or more or self._room > len(data):
            self._append(data)
            self._within = more
            if not more and self._room <= 0:
                self._finish()
            return
        start = 0
        for end, _ in split_records(data):
            if end - start >= self._room:
                self._append(data[start:end])
                self._finish()
                start = end
        self._append(data[start:])

    @property
    def _room(self) -> int:
        """Return bytes to the limit of the file that is written next."""
        return self._limit - (self._end.offset if self._file is not None else 0)

    def _append(self, data: memoryview) -> None:
        while data:
            if self._file is None:
                self._begin()
            assert self._file is not None
            count = os.write(self._file, data)
            self._end = replace(self._end, offset=self._end.offset + count)
            data = data[count:]

    def _begin(self) -> None:
        """Open a new file."""
        name = BinlogFileName.parse(self._end.path.name) if self._end.path else None
        path = self._folder / new_name(name.index + 1 if name else 0)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._end = LogTail(path)
        sync_folder(self._folder)
        if name:
            self._start_maintenance()

    def _finish(self) -> None:
        """Close a full file, durable; the next is begun when there is something to write."""
        assert self._file is not None
        os.fdatasync(self._file)
        os.close(self._file)
        self._file = None

    def _open_newest(self) -> None:
        """Go on in the newest file if it is neither full nor compressed.

        A full one is made durable, as its writer may have ended before.
        """
        path = self._end.path
        if path is None or path.name.endswith(COMPRESSED_SUFFIX):
            return
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        sync_folder(self._folder)  # the process that made the file may have ended before it did
        if self._end.offset >= self._limit:
            self._finish()

    def _take_lock(self) -> None:
        self._lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointMovedError(
                f"another process writes binlog files to {self._folder}: stop one of the two"
            ) from error

    def _start_maintenance(self) -> None:
        self._maintenance_due = time.monotonic() + _MAINTENANCE_INTERVAL_S
        self._maintenance.start()


def savepoint_file(options: File, cluster_id: int, job: str = "") -> SavepointFile:
    """Return the file that keeps the checkpoint of a folder of binlog files."""
    return SavepointFile(
        Path(options.savepoint or Path(options.dir) / "savepoint").absolute(), cluster_id, job
    )


def is_unused(options: File) -> bool:
    """Return whether the folder has no binlog files. Raises OSError."""
    folder = Path(options.dir)
    return not folder.exists() or not list_files(folder)
