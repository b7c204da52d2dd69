"""Open LevelDB in one place, so that nothing is read from it unchecked.

By default LevelDB checks no checksum while it reads or compacts, and a flipped bit becomes a
missing or a different entry. Here every read verifies, and `paranoid_checks` makes compactions,
table indexes and the journal verify, too.

One gap is left in plyvel 1.5: an iterator that reaches the end of the database doesn't check
LevelDB's status, so damage to the last block would end it early and silently. So the greatest key
of every database is END_KEY: an iteration that ends without seeing a key behind its range has lost
entries.
"""

from __future__ import annotations

import os
from itertools import chain, islice
from pathlib import Path
from typing import Any

import plyvel

from sluice.errors import SluiceError
from sluice.pump_service.store.options import IndexOptions

END_KEY = b"~sluice!end"
_LOST_FILE = ("No such file", "Input/output error")


class DamagedError(SluiceError):
    """Report that the database's files don't hold what was written to them."""

    hint = "remove the index: the pump rebuilds it from the value log"


class Batch:
    """Collect puts and deletes that are written together.

    Raises OSError if they can't be written, DamagedError as reads do.
    """

    def __init__(self, batch: plyvel.WriteBatch) -> None:
        self._batch = batch
        self.put, self.delete = batch.put, batch.delete

    def write(self) -> None:
        """Apply all of them or none."""
        try:
            self._batch.write()
        except plyvel.CorruptionError as error:  # a compaction met it
            raise DamagedError(_words(error)) from error
        except plyvel.Error as error:
            raise OSError(_words(error)) from error


class CheckedDB:
    """Hold an open database whose reads verify checksums.

    Reads raise DamagedError for a checksum mismatch, OSError if the files can't be read.
    """

    def __init__(self, path: Path, options: IndexOptions) -> None:
        """Open or create it.

        Raises DamagedError for what LevelDB rejects, OSError if it is in use or can't be read.
        """
        self._path = path
        try:
            self._db = plyvel.DB(
                str(path),
                create_if_missing=True,
                paranoid_checks=True,
                write_buffer_size=options.write_buffer,
                lru_cache_size=options.block_cache_capacity,
                block_size=options.block_size,
                block_restart_interval=options.block_restart_interval,
                max_file_size=options.compaction_table_size,
            )
        except plyvel.Error as error:
            raise _meaning(error) from error
        try:
            if self.get(END_KEY) is None:
                batch = self.batch()
                batch.put(END_KEY, b"")
                batch.write()
        except BaseException:
            self._db.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        try:
            value: bytes | None = self._db.get(key, verify_checksums=True)
        except plyvel.Error as error:
            raise _meaning(error) from error
        return value

    def joined(self, start: bytes, stop: bytes, limit: int, *, keys: bool = True) -> bytes:
        """Return keys and values (or values alone) of [start, stop), concatenated.

        They are ascending, at most `limit`.
        """
        taken = self._taken(start, stop, limit, keys=keys)
        return b"".join(chain.from_iterable(taken) if keys else taken)

    def pairs(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values of [start, stop), ascending, at most `limit`."""
        return self._taken(start, stop, limit, keys=True)

    def _taken(self, start: bytes, stop: bytes, limit: int, *, keys: bool) -> list[Any]:
        try:
            with self._iterator(start, stop, keys=keys) as found:
                taken = list(islice(found, limit))
            if len(taken) < limit:
                self._check_end(stop)
        except plyvel.Error as error:
            raise _meaning(error) from error
        return taken

    def _iterator(self, start: bytes, stop: bytes, *, keys: bool) -> plyvel.Iterator:
        return self._db.iterator(
            start=start, stop=stop, include_key=keys, verify_checksums=True, fill_cache=False
        )

    def _check_end(self, stop: bytes) -> None:
        with self._db.iterator(
            start=stop, include_value=False, verify_checksums=True, fill_cache=False
        ) as rest:
            if next(rest, None) is None:
                raise DamagedError(f"{self._path}: the last block can't be read")

    def batch(self, *, sync: bool = False) -> Batch:
        """Return an empty batch; with `sync` its write returns once it is on disk."""
        return Batch(self._db.write_batch(sync=sync))

    def sync_journals(self) -> None:
        """Sync everything written so far to disk.

        A write with `sync` alone isn't enough: LevelDB syncs its current journal, and an earlier
        one may still wait to become a table.
        """
        for journal in self._path.glob("*.log"):
            try:
                _sync(journal)
            except FileNotFoundError:
                continue  # it has become a table, and tables are synced
        _sync(self._path)

    def level0_files(self) -> int:
        """Return how many tables wait for compaction."""
        value = self._db.get_property(b"leveldb.num-files-at-level0")
        return int(value) if value else 0

    def close(self) -> None:
        """Close the files; may be called again."""
        self._db.close()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _meaning(error: plyvel.Error) -> OSError | DamagedError:
    """Classify a failed read.

    A file that is gone or unreadable is damage; a full disk or too many open files is not.
    """
    text = _words(error)
    if isinstance(error, plyvel.IOError) and not any(words in text for words in _LOST_FILE):
        return OSError(text)
    return DamagedError(text)


def _words(error: plyvel.Error) -> str:
    """Return LevelDB's message, which plyvel passes on as bytes."""
    given = error.args[0] if error.args else ""
    return given.decode(errors="replace") if isinstance(given, bytes) else str(given)
