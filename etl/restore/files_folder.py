"""Manage the folder of a restore into files: which are complete, and which process writes there.

    <folder>/manifest.json                  the request; of each table that is done rows, file,
                                            length, CRC-32C
    <folder>/<schema>.<table>.parquet       its rows (or .csv, .sql)
    <folder>/<schema>.<table>.schema.sql    CREATE TABLE, as a MySQL takes it
    <folder>/<any of them>.<token>.partial  what a process is writing, or was when it was killed

A process writes files under names of its own. Under a lock of the system it checks whether the
restore is still its own, gives them the names that count, and writes the manifest. A process that
stood still meanwhile finds that another one has continued, and changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from sluice.errors import SluiceError
from sluice.etl.history.as_of.output import file_name, with_file_name
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.request import FilesRequest
from sluice.relay.jobs import DONE
from sluice.relay.json_codec import JsonDocument

__all__ = [
    "FilesSummary",
    "FolderLockedError",
    "RestoreFolder",
    "RestoredFile",
    "crc_and_size",
    "missing_folders",
    "read_manifest",
]

_FORMAT = 1
_MANIFEST = "manifest.json"
_LOCK = "manifest.json.lock"
_OWN_SUFFIXES = (".partial", _LOCK)
_LOCK_TIMEOUT_S = 20.0
_LOCK_POLL_INTERVAL_S = 0.05
_READ_BYTES = 1 << 22


class FolderLockedError(SluiceError):
    """Another process is writing the manifest of the folder, and doesn't end; names it."""

    transient = True
    hint = "end the process that it names: the restore goes on then"


@dataclass(frozen=True, slots=True)
class RestoredFile(JsonDocument):
    """A table that is done.

    `file` in the folder has `bytes` bytes, with the `rows` and their `digest`.
    """

    name: str
    file: str
    rows: int
    bytes: int
    crc32c: int
    digest: str
    left_out: tuple[str, ...] = ()

    def is_whole(self, folder: Path) -> bool:
        """Return whether the file is what was written."""
        try:
            return crc_and_size(folder / self.file) == (self.crc32c, self.bytes)
        except FileNotFoundError:
            return False


def crc_and_size(path: Path) -> tuple[int, int]:
    """Return CRC-32C and length of a file. Raises OSError."""
    crc = size = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            crc, size = google_crc32c.extend(crc, piece), size + len(piece)
    return crc, size


def missing_folders(folder: Path) -> tuple[str, ...]:
    """Return the folder and those above it that are missing, from below."""
    return tuple(str(path) for path in (folder, *folder.parents) if not path.exists())


def read_manifest(request: FilesRequest, names: Iterable[str]) -> list[RestoredFile] | None:
    """Return the tables of `names` that an earlier process finished, None if none has begun.

    Raises RestoreError if the folder has another owner; a missing one has none.
    """
    if not request.folder.exists():
        return None
    path = request.folder / _MANIFEST
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        _check_free(request, names)
        return None
    except ValueError as error:
        raise RestoreError(f"{path}: {error}", hint="name another folder") from None
    if found.get("format") != _FORMAT or found.get("asked") != request.asked():
        raise RestoreError(
            f"{request.folder} holds another restore: {json.dumps(found.get('asked'))}",
            hint="name another folder",
        )
    return [RestoredFile.from_json(one) for one in found["tables"]]


def _check_free(request: FilesRequest, names: Iterable[str]) -> None:
    there = {
        path.name for path in request.folder.iterdir() if not path.name.endswith(_OWN_SUFFIXES)
    }
    if there and not request.beside:
        raise RestoreError(
            f"{request.folder} isn't empty: there is {min(there)}",
            hint="name another folder, or allow other files there with --beside",
        )
    if taken := sorted(there.intersection(_files_of(request, names))):
        raise RestoreError(
            f"{request.folder / taken[0]} is there already, and no restore's",
            hint="name another folder",
        )


def _files_of(request: FilesRequest, names: Iterable[str]) -> list[str]:
    return [file_name(name, ending) for name in names for ending in (request.kind, "schema.sql")]


class RestoreFolder:
    """The folder as one process of a restore writes to it.

    `check` raises LeaseLostError if another one goes on with it. Every method raises what `check`
    does, FolderHeldError, OSError.
    """

    def __init__(
        self, request: FilesRequest, names: Collection[str], check: Callable[[], None]
    ) -> None:
        """Create the restore folder; `names`: of all tables that are restored."""
        self._request = request
        self._folder = request.folder
        self._names = frozenset(names)
        self._check = check
        self._token = secrets.token_hex(6)
        self.done: dict[str, RestoredFile] = {}
        """The tables that the manifest names, by name."""

    def begin(self) -> None:
        """Take the folder, and load into `done` the complete tables of earlier processes.

        All else that they left is removed. Raises as `read_manifest`.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._exclusive():
            found = read_manifest(self._request, self._names) or []
            self._remove_partial()
        # which takes a while
        self.done = {table.name: table for table in found if table.is_whole(self._folder)}
        with self._exclusive():
            self._write_manifest()

    def partial(self, file: str) -> Path:
        """Return the path at which a file of the folder is written until it is published."""
        return self._folder / f"{file}.{self._token}.partial"

    def publish(self, tables: Sequence[RestoredFile]) -> None:
        """Give files of complete tables their names, and list them in the manifest."""
        files = [
            file for table in tables for file in (table.file, file_name(table.name, "schema.sql"))
        ]
        for file in files:
            _sync(self.partial(file))
        with self._exclusive():
            for file in files:
                self.partial(file).replace(self._folder / file)
            self.done |= {table.name: table for table in tables}
            self._write_manifest()

    def discard(self, files: Iterable[str]) -> None:
        """Remove what was written and not published."""
        for file in files:
            self.partial(file).unlink(missing_ok=True)

    def remove(self, folders: Sequence[str]) -> None:
        """Remove all that is the restore's, and the `folders` if nothing else is in them."""
        if not self._folder.exists():
            return
        with self._exclusive():
            self._remove_partial()
            for file in (*_files_of(self._request, self._names), _MANIFEST):
                (self._folder / file).unlink(missing_ok=True)
        for folder in folders:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()

    def _remove_partial(self) -> None:
        """Remove what processes before this one were writing."""
        own = {*_files_of(self._request, self._names), _MANIFEST}
        for path in self._folder.glob("*.partial"):
            if path.name.rsplit(".", 2)[0] in own:
                path.unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        document = {
            "format": _FORMAT,
            "asked": self._request.asked(),
            "whole": self._names <= self.done.keys(),
            "tables": [self.done[name].to_json() for name in sorted(self.done)],
        }
        partial = self.partial(_MANIFEST)
        try:
            with with_file_name(partial):
                partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            _sync(partial)
            partial.replace(self._folder / _MANIFEST)
        finally:
            partial.unlink(missing_ok=True)
        _sync(self._folder)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other processes out, and check that the restore is this one's."""
        with _locked(self._folder / _LOCK):
            self._check()
            yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases that of a process that ended, however it did."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while (held := _lock(path)) is None:
        if time.monotonic() > deadline:
            raise FolderLockedError(
                f"{path.parent} is locked by {_holder(path)}, which makes no progress"
            )
        time.sleep(_LOCK_POLL_INTERVAL_S)
    try:
        with contextlib.suppress(OSError):  # it is for people only, and the disk may be full
            os.write(held, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


def _lock(path: Path) -> int | None:
    """Lock the file and return its descriptor, None if another process has the lock."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(held).st_ino == path.stat().st_ino:  # else its holder has removed it since
            os.ftruncate(held, 0)
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(held)
        raise OSError(error.errno, error.strerror, str(path)) from error
    os.close(held)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "a process"
    except FileNotFoundError:
        return "a process"


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(opened)


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """The folder's content, and how many tables this run has `made`, with its seconds.

    `state`: DONE, PAUSED or CANCELLED; `left`: what a cancelled one left.
    """

    job: str
    until: int
    folder: Path
    tables: tuple[RestoredFile, ...]
    made: int
    state: str = DONE
    seconds: float = 0.0
    left: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without what the manifest has of each table."""
        return {
            "until": self.until,
            "folder": str(self.folder),
            "tables": len(self.tables),
            "rows": self.rows,
            "made": self.made,
            "seconds": self.seconds,
        }
