"""Cache folders of an object store that are read all the time and change seldom.

A store charges for each request, twelve times as much for a list as for reading a file. So a writer
of one of these folders puts a new version token into a small file beside them (``changed``), and a
reader reads that file: while the token stays the same, the folder is unchanged. The token is read
before the folder is listed.

It is written twice: before the change, as one that begins with CHANGING, under which nothing is
cached, and after it. If the first write fails, nothing changes. If the second fails, reads cost
more, and the change is still seen at once. A process that dies in between leaves a token that
counts as settled after `REFRESH_INTERVAL_S`.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.relay.storage import ByteWriter, Storage

if TYPE_CHECKING:
    import pyarrow

__all__ = ["REFRESH_INTERVAL_S", "VERSION_FILE", "CachedStorage"]

log = logging.getLogger("sluice")

VERSION_FILE = "changed"
"""The file with the word."""
CHANGING_PREFIX = b"changing "
REFRESH_INTERVAL_S = 60.0
_SETTLED_AFTER_S = 10.0
"""A list may lag: it is cached once the token has been unchanged for this time."""


@dataclass(slots=True)
class _CachedFolder:
    """A folder's content as of one version token."""

    word: bytes
    at: float
    names: list[str]
    read: dict[str, bytes] = field(default_factory=dict)


class CachedStorage:
    """A storage of which some folders are remembered. Threads may share it."""

    def __init__(
        self, storage: Storage, folders: tuple[str, ...], contents: tuple[str, ...]
    ) -> None:
        """Cache the names in `folders`.

        `contents`: those among them of which also the files' contents are cached. Callers read
        these files only after they have listed the names.
        """
        self.url = storage.url
        self._storage = storage
        self._folders = folders
        self._contents = contents
        self._known: dict[str, _CachedFolder] = {}
        self._version = b""
        self._since = time.monotonic()

    @property
    def lists_may_lag(self) -> bool:
        return self._storage.lists_may_lag

    @property
    def is_remote(self) -> bool:
        return self._storage.is_remote

    # Looking

    def names(self, path: str) -> list[str]:
        if path not in self._folders:
            return self._storage.names(path)
        word, now = self._look(), time.monotonic()
        known = self._current(path, word, now)
        if known is not None:
            return list(known.names)
        names = self._storage.names(path)
        if self._is_settled(word, now) and (
            now - self._since >= _SETTLED_AFTER_S or not self.lists_may_lag
        ):
            self._known[path] = _CachedFolder(word, now, names)
        else:
            self._known.pop(path, None)
        return list(names)

    def unchanged_token(self, folder: str) -> object | None:
        """Return the same object as the last time if the folder is unchanged, with one small read.

        None while that is unknown.
        """
        return self._current(folder, self._look(), time.monotonic())

    def _current(self, folder: str, word: bytes, now: float) -> _CachedFolder | None:
        known = self._known.get(folder) if self._is_settled(word, now) else None
        return (
            known
            if known is not None and known.word == word and now - known.at < REFRESH_INTERVAL_S
            else None
        )

    def _is_settled(self, word: bytes, now: float) -> bool:
        return not word.startswith(CHANGING_PREFIX) or now - self._since >= REFRESH_INTERVAL_S

    def read(self, path: str) -> bytes:
        folder = path.partition("/")[0]
        known = self._known.get(folder) if folder in self._contents else None
        if known is not None and path in known.read:
            return known.read[path]
        data = self._storage.read(path)
        if known is not None and path.rpartition("/")[2] in known.names:
            known.read[path] = data
        return data

    def _look(self) -> bytes:
        try:
            word = self._storage.read(VERSION_FILE)
        except FileNotFoundError:
            word = b""
        if word != self._version:
            self._version, self._since = word, time.monotonic()
        return word

    # Changing

    def create(self, path: str, data: bytes) -> None:
        self._mark_changing(path)
        self._storage.create(path, data)
        self._write_version(path)

    def replace(self, path: str, data: bytes) -> None:
        self._mark_changing(path)
        self._storage.replace(path, data)
        self._write_version(path)

    def remove(self, path: str) -> None:
        self._mark_changing(path)
        self._storage.remove(path)
        self._write_version(path)

    def _mark_changing(self, path: str) -> None:
        """Keep every process from caching the folder from now on.

        Raises OSError: then nothing may be changed.
        """
        folder = path.partition("/")[0]
        if folder in self._folders:
            self._known.pop(folder, None)
            self._storage.replace(VERSION_FILE, CHANGING_PREFIX + secrets.token_hex(8).encode())

    def _write_version(self, path: str) -> None:
        folder = path.partition("/")[0]
        if folder not in self._folders:
            return
        self._known.pop(folder, None)
        try:
            self._storage.replace(VERSION_FILE, secrets.token_hex(8).encode())
        except OSError as error:  # the change is made, and seen: no process caches the folder now
            log.warning(
                "%s has changed, its version token can't be written, reads cost more: %s",
                path,
                error,
            )

    # As the storage

    def new_file(self, path: str) -> ByteWriter:
        return self._storage.new_file(path)

    def new_whole_file(self, path: str) -> ByteWriter:
        return self._storage.new_whole_file(path)

    def new_temp_file(self, path: str) -> ByteWriter:
        return self._storage.new_temp_file(path)

    def open(self, path: str) -> pyarrow.NativeFile:
        return self._storage.open(path)

    def names_after(self, path: str, after: str = "", limit: int | None = None) -> list[str]:
        return self._storage.names_after(path, after, limit)

    def sizes(self, path: str, after: str = "") -> dict[str, int]:
        return self._storage.sizes(path, after)

    def remove_empty_directory(self, path: str) -> None:
        self._storage.remove_empty_directory(path)

    def sweep(self, path: str, older_than_s: float) -> int:
        return self._storage.sweep(path, older_than_s)
