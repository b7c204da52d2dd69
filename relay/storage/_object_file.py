"""A file of an object store that is read here and there."""

from __future__ import annotations

from typing import Protocol

from sluice.relay.storage.protocol import SeekableFile

__all__ = ["PREFIX_BYTES", "ObjectFile"]

PREFIX_BYTES = 2**20
"""Bytes that are read at opening: most files are smaller, and take one request."""
_MAX_WHOLE_READ_BYTES = 32 * 2**20
"""The largest file that is held in memory when more than its beginning is read.

So the bytes that were checked are those that are decoded.
"""
_READ_AHEAD_BYTES = 8 * 2**20


class _RangeReader(Protocol):
    def read_range(self, path: str, start: int, end: int) -> bytes: ...


class ObjectFile(SeekableFile):
    """An object that is read in ranges.

    A caller that reads on where the last read ended gets more from the store at a time.
    """

    def __init__(self, storage: _RangeReader, path: str, size: int, beginning: bytes) -> None:
        super().__init__(size)
        self._storage, self._path = storage, path
        self._beginning = beginning
        self._from, self._block = 0, beginning

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        if end <= len(self._beginning):
            data = self._beginning[self._at : end]
        else:
            data = self._through(end)
        self._at = end
        return data

    def _through(self, end: int) -> bytes:
        at, reach = self._at, self._from + len(self._block)
        if not self._from <= at <= reach:
            self._from, self._block = at, b""
            reach = at
        if end > reach and self._size <= _MAX_WHOLE_READ_BYTES:
            rest = self._storage.read_range(self._path, len(self._beginning), self._size)
            self._from, self._block = 0, self._beginning + rest
        elif end > reach:
            ahead = _READ_AHEAD_BYTES if at == reach and self._block else PREFIX_BYTES
            kept = self._block[at - self._from :]
            more = self._storage.read_range(
                self._path, reach, min(max(end, reach + ahead), self._size)
            )
            self._from, self._block = at, kept + more
        return self._block[at - self._from : end - self._from]
