"""The methods and promises of a storage for the relay log's files.

What each kind promises:

- *written is durable.* Local (``file:///dir``): fsync of the file and of its directory. Object
  store (s3, gs, az): when the store has acknowledged the upload.
- *seen whole or not at all.* Local: yes (link or rename of a synced file). Object store: yes (it
  publishes an upload when it ends).
- *``create`` is first come, first served.* Local: exclusive, by ``link(2)``. Object store:
  exclusive, by the store's condition (If-None-Match), also for an upload that was given up and
  arrives late.

Paths are relative to the store's root and use ``/``. Names that begin with a dot are unfinished
files; listings leave them out.
"""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow


class ByteWriter(Protocol):
    """A file being written.

    It becomes durable and visible when the ``with`` block ends without an error.
    """

    def write(self, data: bytes | memoryview) -> int: ...

    def __enter__(self) -> ByteWriter: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Storage(Protocol):
    """The few operations the relay log is made of."""

    url: str

    @property
    def lists_may_lag(self) -> bool:
        """Return whether `names` and `sizes` may lag behind files created or removed just now.

        Reading a file by its name is always up to date.
        """

    @property
    def is_remote(self) -> bool:
        """Return whether each read is a request over a network, for which a provider may charge."""

    def new_file(self, path: str) -> ByteWriter:
        """Write a file under a name that only the caller uses.

        Raises FileExistsError if it is there already, at the latest when it ends.
        """

    def new_whole_file(self, path: str) -> ByteWriter:
        """Write a file as `new_file` does, with its name there only once it is whole.

        For readers that list the directory themselves. FileExistsError may come at the end.
        """

    def new_temp_file(self, path: str) -> ByteWriter:
        """Write as `new_file` does, a file that need not outlive a crash of the machine."""

    def create(self, path: str, data: bytes) -> None:
        """Durably create a small file. Raises FileExistsError if it exists."""

    def replace(self, path: str, data: bytes) -> None:
        """Durably write a small file, in the place of the old one if there is one."""

    def read(self, path: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""

    def open(self, path: str) -> pyarrow.NativeFile:
        """Open a file for reading in pieces; it can seek. Raises FileNotFoundError."""

    def names(self, path: str) -> list[str]:
        """Return the names of files and directories in a directory, sorted; [] if there is none."""

    def names_after(self, path: str, after: str = "", limit: int | None = None) -> list[str]:
        """Return the names that follow `after` in a directory of files alone, sorted.

        At most `limit` of them. Stores return names by the thousand, a request each: these are
        those that are needed.
        """

    def sizes(self, path: str, after: str = "") -> dict[str, int]:
        """Return the files of a directory by name, with their sizes in bytes.

        Only those whose names follow `after`. Empty if it doesn't exist.
        """

    def remove(self, path: str) -> None:
        """Delete a file; no error if it isn't there."""

    def remove_empty_directory(self, path: str) -> None:
        """Delete a directory if it is empty."""

    def sweep(self, path: str, older_than_s: float) -> int:
        """Delete unfinished files of dead writers in a directory; returns how many."""


class SeekableFile(io.RawIOBase):
    """A file of `size` bytes; a subclass reads from `_at` on, and advances it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at
