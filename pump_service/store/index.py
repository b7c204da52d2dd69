"""The index: LevelDB in `kv/`, readable and writable by goleveldb too.

    ts:<u64 big-endian>      -> pointer            start_ts for a Prewrite, commit_ts for all else (u32 fid, i64 offset LE)
    !binlog!gcts             -> u64 LE             everything through it may have been purged
    !binlog!maxCommitTS      -> u64 LE             every commit through it is in this index
    !binlog!handlePointer    -> pointer            the last commit that left the sorter
    !binlog!headPointer      -> pointer            the last record that is in this index
    !sluice!longTransactions -> pairs of u64 LE    commit_ts, start_ts of transactions that took over 600 s (the original
                                                   doesn't know this key and doesn't mind it)

Nothing here but gcts is synced: what is lost is made again from the value log, from the smaller of the two pointers.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, starmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import plyvel

from pump_service.store import failpoints
from pump_service.store.errors import StoreClosedError
from pump_service.store.options import IndexOptions
from pump_service.store.segment import POINTER, Pointer

log = logging.getLogger(__name__)

GC_TS_KEY = b"!binlog!gcts"
MAX_COMMIT_TS_KEY = b"!binlog!maxCommitTS"
HANDLE_POINTER_KEY = b"!binlog!handlePointer"
HEAD_POINTER_KEY = b"!binlog!headPointer"
LONG_TRANSACTIONS_KEY = b"!sluice!longTransactions"
TS_PREFIX = b"ts:"
_KEY = struct.Struct(">3sQ")
_ENTRY = struct.Struct("11s12s")
_U64 = struct.Struct("<Q")
_U64_PAIR = struct.Struct("<QQ")
_DELETE_BATCH = 1024
_POINTERS = np.dtype([("fid", "<u4"), ("offset", "<i8")])
_ENTRIES = np.dtype([("prefix", "S3"), ("ts", ">u8"), ("fid", "<u4"), ("offset", "<i8")])

Ints = npt.NDArray[np.int64]


def encode_key(ts: int) -> bytes:
    """`ts:` and the timestamp, big-endian."""
    return _KEY.pack(TS_PREFIX, ts)


class Index:
    """The open database. Reads and writes are thread-safe; one indexer writes the entries."""

    def __init__(self, directory: Path, options: IndexOptions) -> None:
        """Opens or creates it. A database that LevelDB refuses is set aside as `kv.broken-<time>` and made anew
        (`was_rebuilt`); OSError if even that fails."""
        self._options = options
        self.path = directory
        self.was_rebuilt = not (directory / "CURRENT").exists()
        self._gate = threading.Condition()
        self._users = 0
        self._closed = False
        self._torn = False
        self._db: plyvel.DB | None
        try:
            self._db = self._open()
        except plyvel.IOError as error:
            raise OSError(f"the index {directory} can't be opened: {error}") from error
        except plyvel.Error as error:
            aside = directory.with_name(f"{directory.name}.broken-{time.time_ns() // 1_000_000}")
            directory.rename(aside)
            log.error("%s can't be read (%s): moved to %s, the index is made again", directory, error, aside)
            self.was_rebuilt = True
            self._db = self._open()

    def _open(self) -> plyvel.DB:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        options = self._options
        return plyvel.DB(
            str(self.path),
            create_if_missing=True,
            write_buffer_size=options.write_buffer,
            lru_cache_size=options.block_cache_capacity,
            block_size=options.block_size,
            block_restart_interval=options.block_restart_interval,
            max_file_size=options.compaction_table_size,
        )

    @contextmanager
    def _use(self, *, wait: bool = True) -> Iterator[plyvel.DB]:
        """The database, which stays open meanwhile. While it is being opened again, readers wait; OSError for the others."""
        with self._gate:
            while wait and self._db is None and not self._closed:
                self._gate.wait()
            if self._closed:
                raise StoreClosedError(f"the index {self.path} is closed")
            if self._db is None:
                raise OSError(f"the index {self.path} could not be opened again yet")
            self._users += 1
            db = self._db
        try:
            yield db
        finally:
            with self._gate:
                self._users -= 1
                if not self._users:
                    self._gate.notify_all()

    def _write(self, batch: plyvel.WriteBatch) -> None:
        if self._torn:
            raise OSError(f"the index {self.path} must be opened again after a write that failed")
        try:
            batch.write()
        except BaseException:
            self._torn = True
            raise

    def _let_go(self) -> None:
        with self._gate:
            db, self._db = self._db, None
            self._gate.wait_for(lambda: not self._users)
        if db is not None:
            db.close()

    def reopen(self) -> None:
        """To be called after a write failed, before any other: LevelDB's journal may end in the middle of that write, and
        at the next start it would skip all that had been written behind it. Opening it again cuts that off; what is missing
        then is what lies behind headPointer. Readers wait meanwhile. OSError if there isn't even the space for it; readers
        go on in that case."""
        figures = os.statvfs(self.path)
        if self._db is not None and figures.f_bavail * figures.f_frsize < self._options.write_buffer:
            raise OSError(errno.ENOSPC, "waiting for free space of storage.kv.write-buffer bytes", str(self.path))
        self._let_go()
        try:
            db = self._open()
        except plyvel.Error as error:
            raise OSError(f"the index {self.path} can't be opened again: {error}") from error
        with self._gate:
            self._db, self._torn = db, False
            self._gate.notify_all()

    def close(self) -> None:
        """Closes the database; every later call raises StoreClosedError."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()
        self._let_go()

    # -- entries

    def put_batch(
        self, fid: int, tps: Iterable[int], starts: Iterable[int], commits: Iterable[int], offsets: list[int]
    ) -> None:
        """Enters records of one segment and moves headPointer to the last of them, in one write."""
        failpoints.hit("index.before_batch")
        with self._use(wait=False) as db:
            batch = db.write_batch()
            put, key, pointer, prefix = batch.put, _KEY.pack, POINTER.pack, TS_PREFIX
            for tp, start, commit, offset in zip(tps, starts, commits, offsets, strict=True):
                put(key(prefix, commit if tp else start), pointer(fid, offset))
            put(HEAD_POINTER_KEY, pointer(fid, offsets[-1]))
            self._write(batch)
        failpoints.hit("index.after_batch")

    def put_arrays(self, fid: int, tps: Ints, starts: Ints, commits: Ints, offsets: Ints) -> None:
        """As `put_batch`, for records that come as arrays: half the work for each."""
        failpoints.hit("index.before_batch")
        entries = np.empty(len(offsets), _ENTRIES)
        entries["prefix"] = TS_PREFIX
        entries["ts"] = np.where(tps == 0, starts, commits)
        entries["fid"], entries["offset"] = fid, offsets
        with self._use(wait=False) as db:
            batch = db.write_batch()
            deque(starmap(batch.put, _ENTRY.iter_unpack(entries.tobytes())), maxlen=0)
            batch.put(HEAD_POINTER_KEY, POINTER.pack(fid, int(offsets[-1])))
            self._write(batch)
        failpoints.hit("index.after_batch")

    def get(self, ts: int) -> Pointer | None:
        """The record with this key."""
        value = self._get(encode_key(ts))
        return None if value is None else Pointer.decode(value)

    def range(self, after: int, through: int, limit: int) -> tuple[Ints, Ints, Ints]:
        """Keys in (after, through], ascending, at most `limit`: timestamps, fids, offsets."""
        low, high = encode_key(after + 1), encode_key(through + 1)
        with self._use() as db, db.iterator(start=low, stop=high, fill_cache=False) as found:
            entries = np.frombuffer(b"".join(chain.from_iterable(islice(found, limit))), _ENTRIES)
        return entries["ts"].astype(np.int64), entries["fid"].astype(np.int64), entries["offset"].astype(np.int64)

    def pointers(self, after: int, through: int, limit: int) -> tuple[Ints, Ints]:
        """As `range`, without the timestamps: fids, offsets."""
        low, high = encode_key(after + 1), encode_key(through + 1)
        with self._use() as db, db.iterator(start=low, stop=high, include_key=False, fill_cache=False) as found:
            entries = np.frombuffer(b"".join(islice(found, limit)), _POINTERS)
        return entries["fid"].astype(np.int64), entries["offset"].astype(np.int64)

    def delete_through(self, ts: int, stop: threading.Event) -> int:
        """Removes the keys [0, ts], a batch at a time, and yields to LevelDB's compaction; returns how many.
        Ends early when `stop` is set."""
        deleted, batches = 0, 0
        begin = encode_key(0)
        while not stop.is_set():
            with self._use(wait=False) as db:
                with db.iterator(start=begin, stop=encode_key(ts + 1), include_value=False) as found:
                    keys = list(islice(found, _DELETE_BATCH))
                if not keys:
                    break
                batch = db.write_batch()
                for key in keys:
                    batch.delete(key)
                self._write(batch)
            failpoints.hit("gc.after_delete")
            deleted += len(keys)
            batches += 1
            begin = keys[-1]
            if batches % 100 == 0 and self._level0_files() >= self._options.compaction_l0_trigger:
                stop.wait(5)
        return deleted

    def _level0_files(self) -> int:
        with self._use(wait=False) as db:
            value = db.get_property(b"leveldb.num-files-at-level0")
        return int(value) if value else 0

    # -- where things stand

    def _get(self, key: bytes) -> bytes | None:
        with self._use() as db:
            value: bytes | None = db.get(key)
        return value

    def _number(self, key: bytes) -> int:
        value = self._get(key)
        return int(_U64.unpack(value)[0]) if value else 0

    def _pointer(self, key: bytes) -> Pointer:
        value = self._get(key)
        return Pointer.decode(value) if value else Pointer(0, 0)

    def gc_ts(self) -> int:
        """0 if nothing has been purged yet."""
        return self._number(GC_TS_KEY)

    def save_gc_ts(self, ts: int) -> None:
        """Synced, unlike all else: the segments that are removed next don't come back after a power cut."""
        with self._use(wait=False) as db:
            batch = db.write_batch(sync=True)
            batch.put(GC_TS_KEY, _U64.pack(ts))
            self._write(batch)

    def max_commit_ts(self) -> int:
        """What was last saved; 0 in a new database."""
        return self._number(MAX_COMMIT_TS_KEY)

    def handle_pointer(self) -> Pointer:
        """What was last saved; (0, 0) in a new database."""
        return self._pointer(HANDLE_POINTER_KEY)

    def head_pointer(self) -> Pointer:
        """What was last saved; (0, 0) in a new database."""
        return self._pointer(HEAD_POINTER_KEY)

    def long_transactions(self) -> dict[int, int]:
        """What was last saved: commit_ts -> start_ts."""
        value = self._get(LONG_TRANSACTIONS_KEY) or b""
        return dict(_U64_PAIR.iter_unpack(value))

    def save_handled(
        self, pointer: Pointer, max_commit_ts: int, long_transactions: dict[int, int] | None = None
    ) -> None:
        """Saves how far the sorter is, in one write; the long transactions too if they are given."""
        failpoints.hit("index.before_handled")
        with self._use(wait=False) as db:
            batch = db.write_batch()
            batch.put(HANDLE_POINTER_KEY, pointer.encode())
            batch.put(MAX_COMMIT_TS_KEY, _U64.pack(max_commit_ts))
            if long_transactions is not None:
                batch.put(LONG_TRANSACTIONS_KEY, b"".join(_U64_PAIR.pack(*pair) for pair in long_transactions.items()))
            self._write(batch)
