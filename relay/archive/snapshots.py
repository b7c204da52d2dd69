"""Snapshots: all tables as of one timestamp.

    <archive>/snapshots/<ts>-<token>/making.json
        while it is being made: {"job", "refers_to": [id, …], "made_ms"}
    <archive>/snapshots/<ts>-<token>/<table id>/…parquet
        rows, in the form that the maker chose
    <archive>/snapshots/<ts>-<token>/snapshot.json
        the manifest, created last: without it there is no snapshot

A file that a manifest names may lie in the folder of an older snapshot: a table without changes
since is referred to. So the files of a forgotten snapshot stay while another one, or one that is
being made, refers to them.

Tables and databases are opaque JSON here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c

from sluice.relay.archive.snapshot_manifest import (
    FOLDER,
    FORMAT,
    MANIFEST,
    SNAPSHOT_ID,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotFile,
    ts_of_snapshot,
)
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.storage import Storage

__all__ = ["SnapshotStore", "parse_manifest"]

_PENDING = "making.json"
_REMOVED_KEY = "gone_ms"
_TOMBSTONE_TTL_MS = 30 * 86_400_000
_LAG_MS = 600_000
"""The longest that lists lag, in ms.

After that they have every snapshot that was begun before another one was forgotten.
"""
_HINT = (
    "restore the file from a copy, or forget the snapshot (`sluice snapshot forget`) and make"
    " another one"
)


class SnapshotStore:
    """The snapshots of an archive.

    Every method may raise RelayCorruptError, which names the file, and OSError.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    # Reading

    def ids(self) -> list[str]:
        """Return the names of all folders, by timestamp.

        They are those of snapshots, of snapshots in the making, and of leftovers.
        """
        return [name for name in self._storage.names(FOLDER) if SNAPSHOT_ID.match(name)]

    def all(self) -> list[ArchiveSnapshot]:
        """Return every snapshot, by timestamp."""
        return [snapshot for name in self.ids() if (snapshot := self.find(name)) is not None]

    def find(self, name: str) -> ArchiveSnapshot | None:
        """Return the snapshot with that id, None if there is none, or none yet."""
        found = self._manifest(name)
        return found if isinstance(found, ArchiveSnapshot) else None

    def text(self, name: str) -> bytes | None:
        """Return a snapshot's manifest as its file has it; None if there is none, or none yet."""
        try:
            return self._storage.read(f"{FOLDER}/{name}/{MANIFEST}")
        except FileNotFoundError:
            return None

    def get(self, name: str) -> ArchiveSnapshot:
        """Return the snapshot with that id. Raises RelayError if there is none."""
        found = self.find(name)
        if found is None:
            raise RelayError(
                f"{self._storage.url}/{FOLDER}: there is no snapshot {name}",
                hint="`sluice snapshot list` names them",
            )
        return found

    def latest(self, at_or_before_ts: int) -> ArchiveSnapshot | None:
        """Return the newest snapshot as of that TSO or an earlier one, None if there is none."""
        for name in reversed(self.ids()):
            if (
                ts_of_snapshot(name) <= at_or_before_ts
                and (snapshot := self.find(name)) is not None
            ):
                return snapshot
        return None

    def content(self, file: SnapshotFile) -> bytes:
        """Return a file's content, with length and CRC-32C checked."""
        where = f"{self._storage.url}/{file.path}"
        try:
            data = self._storage.read(file.path)
        except FileNotFoundError:
            raise RelayCorruptError(f"{where}: the file is missing", hint=_HINT) from None
        if len(data) != file.bytes:
            raise RelayCorruptError(
                f"{where}: {len(data)} bytes, the manifest has {file.bytes}", hint=_HINT
            )
        crc = google_crc32c.value(data)
        if crc != file.crc32c:
            raise RelayCorruptError(
                f"{where}: CRC-32C {crc:#010x}, the manifest has {file.crc32c:#010x}",
                hint=_HINT,
            )
        return data

    # Making

    def begin(self, name: str, making: PendingSnapshot) -> list[str]:
        """Record that a snapshot is being made, and return the older ones that it may refer to.

        The files of those returned exist, and stay while the record does. Raises RelayError if the
        snapshot was forgotten.
        """
        before = self.pending(name)
        held = set(before.refers_to) if before is not None else set()
        if before is None or not held.issuperset(making.refers_to):
            self._storage.replace(f"{FOLDER}/{name}/{_PENDING}", making.to_bytes())
        if isinstance(self._manifest(name), _Tombstone):
            raise self._forgotten_error(name)
        return [
            older for older in making.refers_to if older in held or self.find(older) is not None
        ]

    def pending(self, name: str) -> PendingSnapshot | None:
        """Return the record of a snapshot in the making, None if there is none."""
        found: PendingSnapshot | None = self._parsed(name, _PENDING, PendingSnapshot.from_bytes)
        return found

    def publish(self, snapshot: ArchiveSnapshot) -> ArchiveSnapshot:
        """Publish a snapshot, whose files are durable, and return the published one.

        That is another process's, if it was first. Other files in the folder are removed. Raises
        RelayError if the snapshot was forgotten.
        """
        with contextlib.suppress(FileExistsError):
            self._storage.create(snapshot.path, snapshot.to_bytes())
        found = self._manifest(snapshot.id)
        if not isinstance(found, ArchiveSnapshot):
            raise self._forgotten_error(snapshot.id)
        self._remove(f"{FOLDER}/{snapshot.id}", {found.path, *_paths(found)})
        return found

    # Forgetting

    def forget(self, name: str) -> None:
        """Remove a snapshot and its files, except files that other snapshots refer to.

        Those are removed with the last snapshot that refers to them. A snapshot in the making never
        will be published.

        A short note stays in the manifest's place for a month. A process that wakes up in the
        middle of making this snapshot finds the note, and can't publish removed files.
        """
        forgotten = encode_checksummed(
            {"format": FORMAT, _REMOVED_KEY: time.time_ns() // 1_000_000}
        )
        self._storage.replace(f"{FOLDER}/{name}/{MANIFEST}", forgotten)
        self.sweep()

    def sweep(self) -> None:
        """Remove what is left of snapshots that were forgotten, unless others refer to it.

        Nothing is removed while a manifest can't be read.
        """
        gone: dict[str, _Tombstone] = {}
        kept: set[str] = set()
        held: set[str] = set()
        for name in self.ids():
            # The note first: when it goes the manifest is there.
            note, found = self.pending(name), self._manifest(name)
            if isinstance(found, _Tombstone):
                gone[name] = found
            elif found is not None:
                kept.update(_paths(found))
            elif note is not None:
                held.update(note.refers_to)
        young = {
            name for name in gone if self._storage.lists_may_lag and gone[name].age_ms < _LAG_MS
        }
        for name in gone.keys() - held - young:
            manifest = f"{FOLDER}/{name}/{MANIFEST}"
            if not self._remove(f"{FOLDER}/{name}", {manifest, *kept}) and gone[name].is_old:
                self._storage.remove(manifest)
                self._storage.remove_empty_directory(f"{FOLDER}/{name}")

    def _remove(self, folder: str, kept: set[str]) -> int:
        """Remove a folder's files but for those.

        How many of these there are, the manifest aside.
        """
        left = 0
        files = self._storage.sizes(folder)
        for name in self._storage.names(folder):
            path = f"{folder}/{name}"
            if name not in files:
                left += self._remove(path, kept)
            elif path not in kept:
                self._storage.remove(path)
            else:
                left += name != MANIFEST
        self._storage.sweep(folder, 0.0)
        self._storage.remove_empty_directory(folder)
        return left

    def _forgotten_error(self, name: str) -> RelayError:
        return RelayError(
            f"{self._storage.url}/{FOLDER}/{name}: the snapshot was forgotten while it was"
            " being made",
            hint="make another one: `sluice snapshot make`",
        )

    def _manifest(self, name: str) -> ArchiveSnapshot | _Tombstone | None:
        found: ArchiveSnapshot | _Tombstone | None = self._parsed(name, MANIFEST, parse_manifest)
        return found

    def _parsed(self, name: str, file: str, parse: Callable[[bytes], Any]) -> Any:
        path = f"{FOLDER}/{name}/{file}"
        try:
            return parse(self._storage.read(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RelayCorruptError(f"{self._storage.url}/{path}: {error}", hint=_HINT) from None


@dataclass(frozen=True, slots=True)
class _Tombstone:
    """The note in the place of a forgotten snapshot's manifest."""

    gone_ms: int

    @property
    def age_ms(self) -> int:
        """Return how long ago it was forgotten, by this machine's clock (ms)."""
        return time.time_ns() // 1_000_000 - self.gone_ms

    @property
    def is_old(self) -> bool:
        """Return whether no process can be making that snapshot any more."""
        return self.age_ms > _TOMBSTONE_TTL_MS


def parse_manifest(data: bytes) -> ArchiveSnapshot | _Tombstone:
    """Parse a manifest, or what stands in the place of a removed one. Raises ValueError."""
    raw = decode_checksummed(data, FORMAT)
    return (
        _Tombstone(raw[_REMOVED_KEY])
        if set(raw) == {_REMOVED_KEY}
        else ArchiveSnapshot.from_bytes(data)
    )


def _paths(snapshot: ArchiveSnapshot) -> Iterator[str]:
    return (file.path for table in snapshot.tables for file in table.files)
