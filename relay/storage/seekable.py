"""The base of files that pyarrow reads at any offset."""

from __future__ import annotations

import io

__all__ = ["SeekableFile"]


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
