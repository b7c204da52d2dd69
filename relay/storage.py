"""Where the relay log's files are: a local directory, or an object store.

What each promises:

===================  =======================================  ====================================================
                     local (``file:///dir``)                  object store (s3, gs, az)
===================  =======================================  ====================================================
written is durable   fsync of the file and of its directory   when the store has acknowledged the upload
seen whole or not    yes (link or rename of a synced file)    yes (object stores publish an upload when it ends)
``create`` is first  exclusive, by ``link(2)``                exclusive, by the store's condition (If-None-Match),
come, first served                                            also for an upload that was given up and arrives late
===================  =======================================  ====================================================

Paths are relative to the store's root and use ``/``. Names that begin with a dot are unfinished files; listings leave
them out.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow

from relay.url import parse_url


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a listing; `bytes` is its size, `modified_s` the Unix time of its last change."""

    name: str
    bytes: int
    modified_s: float


class Sink(Protocol):
    """A file being written. It becomes durable and visible when the ``with`` block ends without an error."""

    def write(self, data: bytes | memoryview) -> int: ...

    def __enter__(self) -> Sink: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """The few operations the relay log is made of."""

    url: str

    def new_file(self, path: str) -> Sink:
        """Write a file whose name nobody else uses. Raises FileExistsError if it is there already."""

    def create(self, path: str, data: bytes) -> None:
        """Durably create a small file. Raises FileExistsError if it exists."""

    def replace(self, path: str, data: bytes) -> None:
        """Durably write a small file, in the place of the old one if there is one."""

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""

    def open(self, path: str) -> pyarrow.NativeFile:
        """A file for reading in pieces; it can seek. Raises FileNotFoundError."""

    def names(self, path: str) -> list[str]:
        """Names of the files and directories in a directory, sorted; empty if it doesn't exist."""

    def entries(self, path: str) -> list[Entry]:
        """The files of a directory with size and age, sorted by name; empty if it doesn't exist."""

    def remove(self, path: str) -> None:
        """Delete a file; no error if it isn't there."""

    def remove_empty_directory(self, path: str) -> None:
        """Delete a directory if it is empty."""

    def sweep(self, path: str, older_than_s: float) -> int:
        """Delete unfinished files of dead writers in a directory; returns how many."""


def open_storage(url: str) -> Storage:
    """The store at a URL; a plain absolute path is a local directory. Raises RelayError for a URL nobody
    understands.
    """
    place = parse_url(url)
    if place.directory is not None:
        return LocalStorage(place.directory, url)
    from relay._object_storage import open_object_storage

    return open_object_storage(place, url)


class LocalStorage:
    """A directory of this machine, or one that all machines mount."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self._root = root

    def new_file(self, path: str) -> Sink:
        target = self._root / path
        self._make_directory(target.parent)
        try:
            return _LocalSink(target)
        except FileNotFoundError:  # the directory went with the last file in it
            self._make_directory(target.parent)
            return _LocalSink(target)

    def create(self, path: str, data: bytes) -> None:
        target = self._root / path
        with self._synced(target, data) as temporary:
            os.link(temporary, target)

    def replace(self, path: str, data: bytes) -> None:
        target = self._root / path
        with self._synced(target, data) as temporary:
            temporary.replace(target)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def open(self, path: str) -> pyarrow.NativeFile:
        return pyarrow.OSFile(str(self._root / path))

    def names(self, path: str) -> list[str]:
        try:
            return sorted(file.name for file in (self._root / path).iterdir() if not file.name.startswith("."))
        except FileNotFoundError:
            return []

    def entries(self, path: str) -> list[Entry]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / path) as scan:
            for item in scan:
                if not item.name.startswith(".") and item.is_file():
                    with contextlib.suppress(FileNotFoundError):
                        stat = item.stat()
                        found.append(Entry(item.name, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda entry: entry.name)

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def remove_empty_directory(self, path: str) -> None:
        with contextlib.suppress(OSError):
            (self._root / path).rmdir()

    def sweep(self, path: str, older_than_s: float) -> int:
        removed = 0
        with contextlib.suppress(FileNotFoundError):
            for file in (self._root / path).iterdir():
                if file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        if file.stat().st_mtime < time.time() - older_than_s:
                            file.unlink()
                            removed += 1
        return removed

    @contextlib.contextmanager
    def _synced(self, target: Path, data: bytes) -> Iterator[Path]:
        """A synced file beside the target, to be linked or renamed to it; gone afterwards."""
        for last in (False, True):
            self._make_directory(target.parent)
            temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
            except FileNotFoundError:  # the directory went with the last file in it
                if last:
                    raise
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
            _sync_directory(target.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_directory(self, directory: Path) -> None:
        """Create a directory and its parents, each durably."""
        missing = []
        current = directory
        while not current.exists():
            missing.append(current)
            current = current.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_directory(path.parent)


class _LocalSink:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes | memoryview) -> int:
        return _write_all(self._descriptor, data)

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        durable = False
        try:
            if error is None:
                os.fsync(self._descriptor)
                durable = True
        finally:
            os.close(self._descriptor)
            if not durable:
                self._target.unlink(missing_ok=True)
        if durable:
            _sync_directory(self._target.parent)


def _write_all(descriptor: int, data: bytes | memoryview) -> int:
    view = memoryview(data).cast("B")
    total = len(view)
    while view:
        view = view[os.write(descriptor, view) :]
    return total


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
