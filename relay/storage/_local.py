"""The relay log's files in a local directory.

See `sluice.relay.storage.protocol` for what is promised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sluice.relay.storage.protocol import ByteWriter

if TYPE_CHECKING:
    import pyarrow


class LocalStorage:
    """A directory of this machine, or one that all machines mount."""

    lists_may_lag = is_remote = False

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self._root = root

    def disk(self) -> tuple[int, int, int] | None:
        """Return the directory's device, its free bytes, and all of its bytes.

        None if the directory isn't there yet.
        """
        try:
            found = os.statvfs(self._root)
            device = self._root.stat().st_dev
        except FileNotFoundError:
            return None
        return device, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def new_file(self, path: str) -> ByteWriter:
        return self._sink(path, synced=True)

    def new_whole_file(self, path: str) -> ByteWriter:
        target = self._root / path
        if target.exists():
            raise FileExistsError(path)
        hidden = f"{path.rpartition('/')[0]}/.{target.name}.{secrets.token_hex(6)}"
        return _HiddenFileWriter(self._sink(hidden, synced=True), self._root / hidden, target)

    def new_temp_file(self, path: str) -> ByteWriter:
        return self._sink(path, synced=False)

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
        import pyarrow  # by which nothing that reads only the manifest is kept waiting

        return pyarrow.OSFile(str(self._root / path))

    def names(self, path: str) -> list[str]:
        try:
            # Names alone: a Path for each of an hour's windows costs ten times as much.
            entries = os.listdir(self._root / path)  # noqa: PTH208
            return sorted([name for name in entries if name[0] != "."])
        except FileNotFoundError:
            return []

    def names_after(self, path: str, after: str = "", limit: int | None = None) -> list[str]:
        return [name for name in self.names(path) if name > after][:limit]

    def sizes(self, path: str, after: str = "") -> dict[str, int]:
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / path) as scan:
            for item in scan:
                if item.name > after and not item.name.startswith(".") and item.is_file():
                    found[item.name] = item.stat().st_size
        return found

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

    def _sink(self, path: str, *, synced: bool) -> ByteWriter:
        target = self._root / path
        self._make_directory(target.parent)
        try:
            return _LocalFileWriter(target, synced=synced)
        except FileNotFoundError:  # the directory went with the last file in it
            self._make_directory(target.parent)
            return _LocalFileWriter(target, synced=synced)

    @contextlib.contextmanager
    def _synced(self, target: Path, data: bytes) -> Iterator[Path]:
        """Write a synced file beside the target, to be linked or renamed; removed afterwards."""
        for last in (False, True):
            self._make_directory(target.parent)
            temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
            try:
                descriptor = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
                )
                break
            except FileNotFoundError:  # the directory went with the last file in it
                if last:
                    raise
        try:
            try:
                with _with_file_name(target):
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


class _LocalFileWriter:
    def __init__(self, target: Path, *, synced: bool) -> None:
        self._target = target
        self._synced = synced
        self._descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )

    def write(self, data: bytes | memoryview) -> int:
        with _with_file_name(self._target):
            return _write_all(self._descriptor, data)

    def __enter__(self) -> ByteWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        whole = False
        try:
            if error is None:
                if self._synced:
                    os.fsync(self._descriptor)
                whole = True
        finally:
            os.close(self._descriptor)
            if not whole:
                self._target.unlink(missing_ok=True)
        if whole and self._synced:
            _sync_directory(self._target.parent)


class _HiddenFileWriter:
    """A file under a hidden name, which is linked to its own name once it is synced.

    Listings leave out hidden names.
    """

    def __init__(self, sink: ByteWriter, hidden: Path, target: Path) -> None:
        self._sink = sink
        self._hidden = hidden
        self._target = target

    def write(self, data: bytes | memoryview) -> int:
        return self._sink.write(data)

    def __enter__(self) -> ByteWriter:
        self._sink.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.__exit__(kind, error, trace)
        if error is None:
            try:
                os.link(self._hidden, self._target)
            finally:
                self._hidden.unlink(missing_ok=True)
            _sync_directory(self._target.parent)


@contextlib.contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to errors of writing to an open file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


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
