"""Keep the listings of hours in which nothing is landed or removed any more."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from sluice.relay.errors import RelayError
from sluice.relay.storage import Storage
from sluice.relay.url import local_folder

_SETTLED_S = 60.0
"""Age of a folder's last change by which a later one certainly has another time.

File systems round times, and a file server's clock is another one.
"""
_MAX_KEPT = 4
"""Listings: an hour may have tens of thousands of names."""


class HourListings:
    """List the names in an hour's folder of windows, from memory where it hasn't changed since.

    Only a folder on a file system shows that; a store is always asked.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._folder: Path | None = None
        with contextlib.suppress(RelayError):
            self._folder = local_folder(storage.url)
        self._kept: dict[str, tuple[int, list[str]]] = {}
        """Time of the folder's last change (ns), and the names, by hour; the last used last."""

    def names(self, hour: str) -> list[str]:
        """Return the names in order. The caller must not change the list."""
        path = f"windows/{hour}"
        changed_ns = self._settled_ns(path)
        known = self._kept.pop(hour, None)
        if changed_ns is None:
            return self._storage.names(path)
        if known is None or known[0] != changed_ns:
            known = changed_ns, self._storage.names(path)
        while len(self._kept) >= _MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[hour] = known
        return known[1]

    def _settled_ns(self, path: str) -> int | None:
        """Return when a folder changed last; None if that was just now, or isn't known."""
        if self._folder is None:
            return None
        try:
            found = os.stat(self._folder / path)  # noqa: PTH116 as the folder is listed
        except OSError:
            return None
        return found.st_mtime_ns if time.time() - found.st_mtime > _SETTLED_S else None
