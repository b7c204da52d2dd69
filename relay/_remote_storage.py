"""The relay log's files in a remote store. See `relay.storage` for what is promised."""

from __future__ import annotations

import contextlib
import io
from types import TracebackType

import pyarrow
import pyarrow.fs

from relay._patience import Patience
from relay.storage import Entry, Sink

TIMEOUT_S = 60.0
"""How long one call to a remote store may take."""
_BUFFER_BYTES = 4 * 2**20


class RemoteStorage:
    """An object store or distributed file system behind pyarrow.fs. Every call to it ends within `timeout_s`, with TimeoutError."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, root: str, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._patience = Patience(url, timeout_s)

    def new_file(self, path: str) -> Sink:
        if self._exists(path):
            raise FileExistsError(path)
        full = self._at(path)
        return _RemoteSink(self._filesystem, full, self._patience.call(f"opening {path}", self._open, full), self._patience)

    def create(self, path: str, data: bytes) -> None:
        if self._exists(path):
            raise FileExistsError(path)
        self.replace(path, data)
        if self.read(path) != data:
            raise FileExistsError(path)

    def replace(self, path: str, data: bytes) -> None:
        def write() -> None:
            with self._open(self._at(path)) as stream:
                stream.write(data)

        self._patience.call(f"writing {path}", write)

    def read(self, path: str) -> bytes:
        def read() -> bytes:
            with self._filesystem.open_input_stream(self._at(path)) as stream:
                return bytes(stream.read())

        return self._patience.call(f"reading {path}", read)

    def open(self, path: str) -> pyarrow.NativeFile:
        file = self._patience.call(f"opening {path}", self._filesystem.open_input_file, self._at(path))
        return pyarrow.PythonFile(_RemoteFile(file, path, self._patience), mode="r")

    def names(self, path: str) -> list[str]:
        return sorted(info.base_name for info in self._infos(path))

    def entries(self, path: str) -> list[Entry]:
        found = [
            Entry(info.base_name, info.size, info.mtime.timestamp() if info.mtime else 0.0)
            for info in self._infos(path)
            if info.is_file
        ]
        return sorted(found, key=lambda entry: entry.name)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._patience.call(f"removing {path}", self._filesystem.delete_file, self._at(path))

    def remove_empty_directory(self, path: str) -> None:
        if not self._infos(path):
            with contextlib.suppress(OSError):
                self._patience.call(f"removing {path}", self._filesystem.delete_dir, self._at(path))

    def sweep(self, path: str, older_than_s: float) -> int:
        return 0  # uploads are published whole; the store drops abandoned ones by its own rules

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _open(self, full: str) -> pyarrow.NativeFile:
        self._filesystem.create_dir(full.rsplit("/", 1)[0], recursive=True)
        return self._filesystem.open_output_stream(full)

    def _exists(self, path: str) -> bool:
        info = self._patience.call(f"looking for {path}", self._filesystem.get_file_info, self._at(path))
        return bool(info.type != pyarrow.fs.FileType.NotFound)

    def _infos(self, path: str) -> list[pyarrow.fs.FileInfo]:
        selector = pyarrow.fs.FileSelector(self._at(path), allow_not_found=True)
        found = self._patience.call(f"listing {path}", self._filesystem.get_file_info, selector)
        return [info for info in found if not info.base_name.startswith(".")]


class _RemoteFile(io.RawIOBase):
    """A remote file whose reads end in time."""

    def __init__(self, file: pyarrow.NativeFile, path: str, patience: Patience) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._patience = patience

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._patience.call(f"reading {self._path}", self._file.seek, offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        return bytes(self._patience.call(f"reading {self._path}", self._file.read, None if size < 0 else size))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _RemoteSink:
    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str, stream: pyarrow.NativeFile, patience: Patience) -> None:
        self._filesystem = filesystem
        self._path = path
        self._stream = stream
        self._patience = patience
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self._flush()
        return len(data)

    def _flush(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        self._patience.call(f"writing {self._path}", self._stream.write, data)

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
            self._patience.call(f"closing {self._path}", self._stream.close)
            return
        with contextlib.suppress(OSError):
            self._patience.call(f"closing {self._path}", self._stream.close)
            self._patience.call(f"removing {self._path}", self._filesystem.delete_file, self._path)
