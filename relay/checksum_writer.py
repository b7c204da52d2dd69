"""Pass what pyarrow writes on to a sink, count bytes and compute the CRC-32C."""

from __future__ import annotations

from typing import Any

import google_crc32c

__all__ = ["ChecksumWriter", "WriteOnlyFile"]


class WriteOnlyFile:
    """The methods of a write-only file that `pyarrow.PythonFile` needs, but `write` and `tell`."""

    closed = False

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class ChecksumWriter(WriteOnlyFile):
    """A file for `pyarrow.PythonFile`.

    `written` bytes have gone to the sink, their checksum is `crc32c`.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.written = 0
        self.crc32c = 0
        self._since_mark: int | None = None

    @property
    def crc32c_since_mark(self) -> int:
        """Return the checksum of all that was written, unless `mark` was called."""
        return self.crc32c if self._since_mark is None else self._since_mark

    def mark(self) -> int:
        """Begin `crc32c_since_mark` here, and return the number of bytes written."""
        self._since_mark = 0
        return self.written

    def write(self, data: Any) -> int:
        """Pass on bytes-like `data`; how many."""
        data = bytes(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        if self._since_mark is not None:
            self._since_mark = google_crc32c.extend(self._since_mark, data)
        self.written += len(data)
        return int(self._sink.write(data))

    def tell(self) -> int:
        return self.written
