"""Maintain finished binlog files beside the writing: compress them, remove old ones."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import threading
import time
from pathlib import Path

from sluice.etl.changes.formats.binlog_file import COMPRESSED_SUFFIX, BinlogFileError, list_files
from sluice.etl.downstream import sync_folder

log = logging.getLogger("sluice.apply")

_CHUNK_BYTES = 1 << 20
_TEMPORARY_SUFFIX = ".tmp"


class FileMaintenance:
    """Work in a thread of its own, on files that are no longer written: never on the newest.

    Errors are logged and the work is retried the next time. At most one thread a folder: the
    process that uses it holds the folder's lock.
    """

    def __init__(self, folder: Path, *, compress: bool, retention_days: int) -> None:
        """Create the file maintenance.

        `retention_days`: how long finished files are kept, by their time of last change.

        0: for ever.
        """
        self._folder = folder
        self._compress = compress
        self._keep_s = retention_days * 86400
        self.keep_from = ""
        """Name of the oldest file that may be needed to go on after a crash."""
        self._stopped = threading.Event()
        self._again = threading.Event()
        self._thread: threading.Thread | None = None

    def clean_up(self) -> None:
        """Remove what an interrupted maintenance left. Raises OSError.

        This is unfinished copies, and files whose copy is finished.
        """
        for path in self._folder.glob("binlog-*"):
            if (
                path.name.endswith(_TEMPORARY_SUFFIX)
                or path.with_name(path.name + COMPRESSED_SUFFIX).exists()
            ):
                path.unlink()

    def start(self) -> None:
        """Start the maintenance in a thread, if the settings want any. Returns at once."""
        if not self._compress and not self._keep_s:
            return
        self._again.set()
        if self._thread is None or not self._thread.is_alive():
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="sluice-files", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop, at the latest after a piece of a file."""
        if self._thread is not None:
            self._stopped.set()
            self._again.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            self._again.wait()
            self._again.clear()
            if self._stopped.is_set():
                return
            try:
                self._remove_old()
                self._compress_finished()
            except (OSError, BinlogFileError) as error:
                log.warning(
                    "cannot maintain the files in %s, trying again: %s", self._folder, error
                )

    def _remove_old(self) -> None:
        if not self._keep_s:
            return
        for path in list_files(self._folder)[:-1]:  # the oldest first, so that no hole appears
            if (
                self._stopped.is_set()
                or path.name >= self.keep_from
                or path.stat().st_mtime > time.time() - self._keep_s
            ):
                return
            path.unlink()
            log.info("removed %s: older than %d days", path, self._keep_s // 86400)

    def _compress_finished(self) -> None:
        if not self._compress:
            return
        for path in list_files(self._folder)[:-1]:
            if path.name >= self.keep_from:  # may have to be cut
                return
            if not path.name.endswith(COMPRESSED_SUFFIX) and not self._compressed(path):
                return

    def _compressed(self, path: Path) -> bool:
        temporary = path.with_name(path.name + COMPRESSED_SUFFIX + _TEMPORARY_SUFFIX)
        before = path.stat()
        with path.open("rb") as source, temporary.open("wb") as target:
            with gzip.GzipFile(path.name, "wb", fileobj=target, mtime=before.st_mtime) as packed:
                while piece := source.read(_CHUNK_BYTES):
                    packed.write(piece)
                    if self._stopped.is_set():
                        break
            if self._stopped.is_set():
                return False
            target.flush()
            os.fsync(target.fileno())
        shutil.copystat(path, temporary)
        temporary.replace(path.with_name(path.name + COMPRESSED_SUFFIX))
        sync_folder(self._folder)
        path.unlink()
        return True
