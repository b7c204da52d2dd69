"""The index: LevelDB in `kv/`, readable and writable by goleveldb too.

    ts:<u64 big-endian>      -> pointer            start_ts for a Prewrite, commit_ts for all else (u32 fid, i64 offset LE)
    !binlog!gcts             -> u64 LE             everything through it may have been purged
    !binlog!maxCommitTS      -> u64 LE             every commit through it is in this index
    !binlog!handlePointer    -> pointer            the last commit that left the sorter
    !binlog!headPointer      -> pointer            the last record that is in this index
    !sluice!longTransactions -> pairs of u64 LE    commit_ts, start_ts of transactions that took over 600 s (the original
                                                   doesn't know this key and doesn't mind it)

Nothing here is synced: what is lost is made again from the value log, from the smaller of the two pointers.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
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
_U64 = struct.Struct("<Q")
_U64_PAIR = struct.Struct("<QQ")
_DELETE_BATCH = 1024
_POINTERS = np.dtype([("fid", "<u4"), ("offset", "<i8")])
_ENTRIES = np.dtype([("prefix", "S3"), ("ts", ">u8"), ("fid", "<u4"), ("offset", "<i8")])

Ints = npt.NDArray[np.int64]


@contextmanager
def _until_closed() -> Iterator[None]:
    """Reads that the store's close overtakes end as such."""
    try:
        yield
    except RuntimeError as error:  # plyvel's, for a database or an iterator that has been closed
        raise StoreClosedError("the store was closed while it was being read") from error


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

    def close(self) -> None:
        """Closes the database; every later call raises."""
        self._db.close()

    # -- entries

    def put_batch(
        self, fid: int, tps: Iterable[int], starts: Iterable[int], commits: Iterable[int], offsets: list[int]
    ) -> None:
        """Enters records of one segment and moves headPointer to the last of them, in one write."""
        failpoints.hit("index.before_batch")
        batch = self._db.write_batch()
        put, key, pointer, prefix = batch.put, _KEY.pack, POINTER.pack, TS_PREFIX
        for tp, start, commit, offset in zip(tps, starts, commits, offsets, strict=True):
            put(key(prefix, commit if tp else start), pointer(fid, offset))
        put(HEAD_POINTER_KEY, pointer(fid, offsets[-1]))
        batch.write()
        failpoints.hit("index.after_batch")

    def get(self, ts: int) -> Pointer | None:
        """The record with this key."""
        with _until_closed():
            value = self._db.get(encode_key(ts))
        return None if value is None else Pointer.decode(value)

    def range(self, after: int, through: int, limit: int) -> tuple[Ints, Ints, Ints]:
        """Keys in (after, through], ascending, at most `limit`: timestamps, fids, offsets."""
        low, high = encode_key(after + 1), encode_key(through + 1)
        with _until_closed(), self._db.iterator(start=low, stop=high, fill_cache=False) as found:
            entries = np.frombuffer(b"".join(chain.from_iterable(islice(found, limit))), _ENTRIES)
        return entries["ts"].astype(np.int64), entries["fid"].astype(np.int64), entries["offset"].astype(np.int64)

    def pointers(self, after: int, through: int, limit: int) -> tuple[Ints, Ints]:
        """As `range`, without the timestamps: fids, offsets."""
        low, high = encode_key(after + 1), encode_key(through + 1)
        with (
            _until_closed(),
            self._db.iterator(start=low, stop=high, include_key=False, fill_cache=False) as found,
        ):
            entries = np.frombuffer(b"".join(islice(found, limit)), _POINTERS)
        return entries["fid"].astype(np.int64), entries["offset"].astype(np.int64)

    def delete_through(self, ts: int, stop: threading.Event) -> int:
        """Removes the keys [0, ts], a batch at a time, and yields to LevelDB's compaction; returns how many.
        Ends early when `stop` is set."""
        deleted, batches = 0, 0
        begin = encode_key(0)
        while not stop.is_set():
            with self._db.iterator(start=begin, stop=encode_key(ts + 1), include_value=False) as found:
                keys = list(islice(found, _DELETE_BATCH))
            if not keys:
                break
            batch = self._db.write_batch()
            for key in keys:
                batch.delete(key)
            batch.write()
            failpoints.hit("gc.after_delete")
            deleted += len(keys)
            batches += 1
            begin = keys[-1]
            if batches % 100 == 0 and self._level0_files() >= self._options.compaction_l0_trigger:
                stop.wait(5)
        return deleted

    def _level0_files(self) -> int:
        value = self._db.get_property(b"leveldb.num-files-at-level0")
        return int(value) if value else 0

    # -- where things stand

    def _number(self, key: bytes) -> int:
        value = self._db.get(key)
        return int(_U64.unpack(value)[0]) if value else 0

    def _pointer(self, key: bytes) -> Pointer:
        value = self._db.get(key)
        return Pointer.decode(value) if value else Pointer(0, 0)

    def gc_ts(self) -> int:
        """0 if nothing has been purged yet."""
        return self._number(GC_TS_KEY)

    def save_gc_ts(self, ts: int) -> None:
        self._db.put(GC_TS_KEY, _U64.pack(ts))

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
        value = self._db.get(LONG_TRANSACTIONS_KEY) or b""
        return dict(_U64_PAIR.iter_unpack(value))

    def save_handled(
        self, pointer: Pointer, max_commit_ts: int, long_transactions: dict[int, int] | None = None
    ) -> None:
        """Saves how far the sorter is, in one write; the long transactions too if they are given."""
        failpoints.hit("index.before_handled")
        with self._db.write_batch() as batch:
            batch.put(HANDLE_POINTER_KEY, pointer.encode())
            batch.put(MAX_COMMIT_TS_KEY, _U64.pack(max_commit_ts))
            if long_transactions is not None:
                batch.put(LONG_TRANSACTIONS_KEY, b"".join(_U64_PAIR.pack(*pair) for pair in long_transactions.items()))
