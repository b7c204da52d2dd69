"""Garbage collection: what is old enough is purged, first in name, then in the value log and the index.

Segments and index entries are kept 600 s longer than what is said to be purged, and as long as a later commit needs
them.
"""

from __future__ import annotations

import logging
import threading

from sluice.pump_service.store import failpoints
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.indexer import Indexer
from sluice.pump_service.store.sorter import LONG_TRANSACTION, Sorter
from sluice.pump_service.store.value_log import ValueLog
from sluice.pump_service.store.window_reader import WindowReader

log = logging.getLogger(__name__)

LATE_COMMIT_SLACK = LONG_TRANSACTION
"""Prewrites are kept for 600 s more: their Commit may be among what stays."""


class GarbageCollector:
    """One thread at a time collects; any thread asks."""

    def __init__(
        self, value_log: ValueLog, index: BinlogIndex, sorter: Sorter, indexer: Indexer, reader: WindowReader
    ) -> None:
        self._log, self._index, self._sorter = value_log, index, sorter
        self._indexer, self._reader = indexer, reader
        self._stopping = threading.Event()
        self.gc_ts = index.gc_ts()
        """everything through it may have been purged"""
        self.done_gc_ts = 0
        """the last one whose files and entries are gone"""
        self.deleted_keys = 0

    def stop(self) -> None:
        """Has the collection that runs end early."""
        self._stopping.set()

    def collect(self, ts: int) -> None:
        """Purges what was committed at or before `ts`. The sorter must know all that was written. Open Prewrites hold
        it back; nothing happens if what is left isn't above the last one, or not below max_commit_ts.
        """
        known = self._indexer.applied  # of what comes behind it the sorter may not know yet
        oldest = self._sorter.smallest_open()
        if oldest:
            ts = min(ts, oldest)
        if ts <= self.gc_ts or ts >= self._sorter.max_commit_ts or self._stopping.is_set():
            return
        self._index.save_gc_ts(ts)
        self.gc_ts = ts
        failpoints.hit("gc.after_mark")
        needed = [start for commit, start in self._sorter.long_transactions().items() if commit > ts]
        self._sorter.drop_long(ts)
        keep_from = min([ts - LATE_COMMIT_SLACK, *(start - 1 for start in needed)])
        if keep_from > 0:
            removed = self._log.purge(keep_from, known.fid)
            self._reader.clear_cache()
            deleted = self._index.delete_through(keep_from, known, self._stopping)
            self.deleted_keys += deleted
            log.info("purged through %d: %d segments, %d index entries", ts, len(removed), deleted)
        if not self._stopping.is_set():
            self.done_gc_ts = ts
