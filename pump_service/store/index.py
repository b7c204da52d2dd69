"""Store the index in LevelDB, in `kv/`; goleveldb can read and write it, too.

    ts:<u64 big-endian>      -> pointer           start_ts of a Prewrite, else commit_ts
                                                  (u32 fid, i64 offset LE)
    !binlog!gcts             -> u64 LE            everything through it may have been purged
    !binlog!maxCommitTS      -> u64 LE            every commit through it is in this index
    !binlog!handlePointer    -> pointer           the last commit that left the sorter
    !binlog!headPointer      -> pointer           the last record that is in this index
    !sluice!longTransactions -> pairs of u64 LE   commit_ts, start_ts of transactions that took
                                                  over 600 s
    !sluice!synced           -> IndexPosition     as of the last sync of everything before it
    !sluice!gaps             -> UnreadableRanges  of the value log, when it was indexed
    ~sluice!end              -> nothing           see leveldb.py

In a directory of captured transactions, where several may share a timestamp, the entries are

    ts:<u64 BE><u64 BE>      -> pointer           commit_ts, start_ts; of a fake its timestamp twice

The original ignores the last four. Its own pointers aren't synced: after a power cut they may have
survived entries that did not. So a start resumes at `!sluice!synced`, which is written every few
seconds after the journals were synced, and indexes the value log behind it again.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.pump_service import kernel
from sluice.pump_service.store import failpoints
from sluice.pump_service.store import unreadable_ranges as gaps
from sluice.pump_service.store.index_database import RecoverableDatabase
from sluice.pump_service.store.index_position import IndexPosition, decode_pairs, encode_pairs
from sluice.pump_service.store.leveldb import CheckedDB
from sluice.pump_service.store.options import IndexOptions
from sluice.pump_service.store.segment import POINTER, RecordPointer
from sluice.pump_service.store.unreadable_ranges import UnreadableRange

log = logging.getLogger(__name__)

GC_TS_KEY = b"!binlog!gcts"
MAX_COMMIT_TS_KEY = b"!binlog!maxCommitTS"
HANDLE_POINTER_KEY = b"!binlog!handlePointer"
HEAD_POINTER_KEY = b"!binlog!headPointer"
LONG_TRANSACTIONS_KEY = b"!sluice!longTransactions"
SYNCED_KEY = b"!sluice!synced"
GAPS_KEY = b"!sluice!gaps"
TS_PREFIX = b"ts:"
_KEY = struct.Struct(">3sQ")
_ENTRY = struct.Struct("11s12s")
_CAPTURED_KEY = struct.Struct(">3sQQ")
_CAPTURED_ENTRY = struct.Struct("19s12s")
_U64 = struct.Struct("<Q")
_DELETE_BATCH = 1024
_POINTERS = np.dtype([("fid", "<u4"), ("offset", "<i8")])
_ENTRIES = np.dtype([("prefix", "S3"), ("ts", ">u8"), ("fid", "<u4"), ("offset", "<i8")])
_CAPTURED_ENTRIES = np.dtype(
    [("prefix", "S3"), ("ts", ">u8"), ("start", ">u8"), ("fid", "<u4"), ("offset", "<i8")]
)

Ints = npt.NDArray[np.int64]


def encode_key(ts: int) -> bytes:
    """Return `ts:` and the timestamp, big-endian."""
    return _KEY.pack(TS_PREFIX, ts)


class BinlogIndex(RecoverableDatabase):
    """Map timestamps to records, and hold the pump's position. One indexer writes the entries."""

    def __init__(
        self, directory: Path, options: IndexOptions, *, is_captured: bool = False
    ) -> None:
        """Open it as RecoverableDatabase does; `is_captured` if it is of captured transactions."""
        self._gc_ts = 0
        self.is_captured = is_captured
        self._entries, self._entry = (
            (_CAPTURED_ENTRIES, _CAPTURED_ENTRY) if is_captured else (_ENTRIES, _ENTRY)
        )
        super().__init__(directory, options)

    def _verify(self, db: CheckedDB) -> None:
        self._gc_ts = self._number(db, GC_TS_KEY)
        self._read_position(db)

    def rebuild(self) -> None:
        """Rebuild as RecoverableDatabase does; the new one holds gcTS and nothing else."""
        super().rebuild()
        self.save_gc_ts(self._gc_ts)

    # -- entries

    def put_batch(
        self,
        fid: int,
        tps: Sequence[int],
        starts: Sequence[int],
        commits: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """Enter records of one segment and move headPointer to the last of them, in one write."""
        if self.is_captured:
            self.put_arrays(
                fid, *(np.array(column, np.int64) for column in (tps, starts, commits, offsets))
            )
            return
        failpoints.hit("index.before_batch")
        with self._use(wait=False) as db:
            batch = db.batch()
            kernel.put_entries(batch.put, TS_PREFIX, fid, tps, starts, commits, offsets)
            batch.put(HEAD_POINTER_KEY, POINTER.pack(fid, offsets[-1]))
            self._write(batch)
        failpoints.hit("index.after_batch")

    def put_arrays(self, fid: int, tps: Ints, starts: Ints, commits: Ints, offsets: Ints) -> None:
        """Enter records given as arrays, as `put_batch` does at half the cost per record."""
        failpoints.hit("index.before_batch")
        entries = np.empty(len(offsets), self._entries)
        entries["prefix"] = TS_PREFIX
        if self.is_captured:
            entries["ts"], entries["start"] = commits, starts
        else:
            entries["ts"] = np.where(tps == 0, starts, commits)
        entries["fid"], entries["offset"] = fid, offsets
        with self._use(wait=False) as db:
            batch = db.batch()
            deque(starmap(batch.put, self._entry.iter_unpack(entries.tobytes())), maxlen=0)
            batch.put(HEAD_POINTER_KEY, POINTER.pack(fid, int(offsets[-1])))
            self._write(batch)
        failpoints.hit("index.after_batch")

    def get(self, ts: int, start_ts: int = 0) -> RecordPointer | None:
        """Return the pointer stored at `ts`, of captured transactions at `ts` and `start_ts`."""
        key = _CAPTURED_KEY.pack(TS_PREFIX, ts, start_ts) if self.is_captured else encode_key(ts)
        with self._use(reader=True) as db:
            value = db.get(key)
        return None if value is None else RecordPointer.decode(value)

    def range(self, after: int, through: int, limit: int) -> tuple[Ints, Ints, Ints]:
        """Return timestamps, fids, offsets of keys in (after, through], ascending, to `limit`."""
        with self._use(reader=True) as db:
            found = db.joined(encode_key(after + 1), encode_key(through + 1), limit)
        entries = np.frombuffer(found, self._entries)
        return (
            entries["ts"].astype(np.int64),
            entries["fid"].astype(np.int64),
            entries["offset"].astype(np.int64),
        )

    def pointers(self, after: int, through: int, limit: int) -> tuple[Ints, Ints]:
        """Return fids and offsets as `range` does, without the timestamps."""
        with self._use(reader=True) as db:
            found = db.joined(encode_key(after + 1), encode_key(through + 1), limit, keys=False)
        entries = np.frombuffer(found, _POINTERS)
        return entries["fid"].astype(np.int64), entries["offset"].astype(np.int64)

    def delete_through(self, ts: int, before: RecordPointer, stop: threading.Event) -> int:
        """Remove the keys [0, ts] of records before `before`, in batches; return how many.

        Yields to LevelDB's compaction between batches. Ends early when `stop` is set.
        """
        deleted, batches = 0, 0
        begin = encode_key(0)
        while not stop.is_set():
            with self._use(wait=False, reader=True) as db:
                pairs = db.pairs(begin, encode_key(ts + 1), _DELETE_BATCH)
                if not pairs:
                    break
                keys = [key for key, value in pairs if RecordPointer.decode(value) < before]
                batch = db.batch()
                for key in keys:
                    batch.delete(key)
                self._write(batch)
            failpoints.hit("gc.after_delete")
            deleted += len(keys)
            batches += 1
            begin = pairs[-1][0] + b"\0"
            if batches % 100 == 0 and self._level0_files() >= self._options.compaction_l0_trigger:
                stop.wait(5)
        return deleted

    def _level0_files(self) -> int:
        with self._use(wait=False) as db:
            return db.level0_files()

    # -- positions

    @staticmethod
    def _number(db: CheckedDB, key: bytes) -> int:
        value = db.get(key)
        return int(_U64.unpack(value)[0]) if value else 0

    @staticmethod
    def _pointer(db: CheckedDB, key: bytes) -> RecordPointer:
        value = db.get(key)
        return RecordPointer.decode(value) if value else RecordPointer(0, 0)

    def gc_ts(self) -> int:
        """Return gcTS; 0 if nothing has been purged yet."""
        return self._gc_ts

    def save_gc_ts(self, ts: int) -> None:
        """Save gcTS, synced: segments removed next don't come back after a power cut."""
        with self._use(wait=False) as db:
            batch = db.batch(sync=True)
            batch.put(GC_TS_KEY, _U64.pack(ts))
            self._write(batch)
        self._gc_ts = ts

    def head_pointer(self) -> RecordPointer:
        """Return the pointer to the last record in this index; (0, 0) in a new database."""
        with self._use() as db:
            return self._pointer(db, HEAD_POINTER_KEY)

    def latest(self) -> RecordPointer | None:
        """Return the pointer to the last record ever entered; None in a new database."""
        with self._use() as db:
            if db.get(HEAD_POINTER_KEY) is None:
                return None
            return max(self._read_position(db).head, self._pointer(db, HEAD_POINTER_KEY))

    def position(self) -> IndexPosition:
        """Return where a start resumes.

        That is the position last synced, or the one an original pump last saved if it wrote this
        index.
        """
        with self._use() as db:
            return self._read_position(db)

    def _read_position(self, db: CheckedDB) -> IndexPosition:
        synced = db.get(SYNCED_KEY)
        if synced is not None:
            return IndexPosition.decode(synced)
        long = decode_pairs(db.get(LONG_TRANSACTIONS_KEY) or b"")
        head, handled = self._pointer(db, HEAD_POINTER_KEY), self._pointer(db, HANDLE_POINTER_KEY)
        return IndexPosition(head, handled, self._number(db, MAX_COMMIT_TS_KEY), long)

    def save_handled(
        self,
        pointer: RecordPointer,
        max_commit_ts: int,
        long_transactions: dict[int, int] | None = None,
    ) -> None:
        """Save the sorter's position in one write, as the original does.

        The long transactions are saved too if given.
        """
        failpoints.hit("index.before_handled")
        with self._use(wait=False) as db:
            batch = db.batch()
            batch.put(HANDLE_POINTER_KEY, pointer.encode())
            batch.put(MAX_COMMIT_TS_KEY, _U64.pack(max_commit_ts))
            if long_transactions is not None:
                batch.put(LONG_TRANSACTIONS_KEY, encode_pairs(long_transactions))
            self._write(batch)

    def gaps(self) -> list[UnreadableRange]:
        """Return the unreadable ranges last saved."""
        with self._use() as db:
            return gaps.decode_ranges(db.get(GAPS_KEY) or b"")

    def save_gaps(self, found: list[UnreadableRange]) -> None:
        """Replace the saved unreadable ranges."""
        with self._use(wait=False) as db:
            batch = db.batch()
            batch.put(GAPS_KEY, gaps.encode_ranges(found))
            self._write(batch)

    def save_synced(self, position: IndexPosition) -> None:
        """Make all writes so far durable, then `position`, which must hold before this call."""
        failpoints.hit("index.before_synced")
        with self._use(wait=False) as db:
            db.sync_journals()
            batch = db.batch(sync=True)
            batch.put(SYNCED_KEY, position.encode())
            self._write(batch)
