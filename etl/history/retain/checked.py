"""Read whole snapshots before others are removed in reliance on them.

<archive>/checked/<snapshot id>.json    {"archive_ts"}: where the archive ended when the
                                        snapshot was read, and whole (TSO)
"""

from __future__ import annotations

import json

from sluice.relay import RelayCorruptError, RelayError
from sluice.relay.archive import Archive, ArchiveSnapshot, SnapshotStore
from sluice.tidb import tso

__all__ = ["VerifiedSnapshots"]

_FOLDER = "checked"
_VALID_FOR = tso.span(7 * 86_400_000)


class VerifiedSnapshots:
    """Notes of the snapshots that were verified recently."""

    def __init__(self, archive: Archive) -> None:
        self._storage = archive.storage
        self._snapshots = SnapshotStore(archive.storage)
        self._now = last.hi if (last := archive.last()) is not None else 0

    def fault(self, snapshot: ArchiveSnapshot) -> str | None:
        """Return a snapshot's fault.

        None if it can be read, or could within the last 7 days of the upstream's time. Raises
        OSError.
        """
        if 0 <= self._now - self._verified_at(snapshot.id) <= _VALID_FOR:
            return None
        for table in snapshot.tables:
            for file in table.files:
                try:
                    self._snapshots.content(file)
                except RelayError as error:
                    return f"{table.full_name} in the snapshot {snapshot.id}: {error}"
        self._storage.replace(
            f"{_FOLDER}/{snapshot.id}.json", json.dumps({"archive_ts": self._now}).encode() + b"\n"
        )
        return None

    def forget(self, left: frozenset[str]) -> None:
        """Remove the notes of all snapshots but `left`."""
        for name in self._storage.names(_FOLDER):
            if name.removesuffix(".json") not in left:
                self._storage.remove(f"{_FOLDER}/{name}")

    def _verified_at(self, name: str) -> int:
        try:
            return int(json.loads(self._storage.read(f"{_FOLDER}/{name}.json"))["archive_ts"])
        except (FileNotFoundError, ValueError, KeyError, TypeError, RelayCorruptError):
            return self._now - _VALID_FOR - 1
