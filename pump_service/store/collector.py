"""Collect garbage: advance gcTS first, then remove from the value log and the index.

Segments and index entries outlive gcTS by 600 s, and longer if a later commit needs them.
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
"""Prewrites are kept this much longer: their Commits may be above gcTS."""


class GarbageCollector:
    """Collect in one thread at a time; any thread may read its state."""

    def __init__(
        self,
        value_log: ValueLog,
        index: BinlogIndex,
        sorter: Sorter,
        indexer: Indexer,
        reader: WindowReader,
    ) -> None:
        self._log, self._index, self._sorter = value_log, index, sorter
        self._indexer, self._reader = indexer, reader
        self._stopping = threading.Event()
        self.gc_ts = index.gc_ts()
        """Everything through it may have been purged."""
        self.done_gc_ts = 0
        """The last gc_ts whose segments and entries are removed."""
        self.deleted_keys = 0

    def stop(self) -> None:
        """End a running collection early."""
        self._stopping.set()

    def begin_at(self, ts: int) -> None:
        """Save that what was committed at or before `ts` isn't here, as if it were purged."""
        self._index.save_gc_ts(ts)
        self.gc_ts = ts

    def collect(self, ts: int) -> None:
        """Purge what was committed at or before `ts`. The sorter must know all that was written.

        Open Prewrites lower the limit. Does nothing unless the result is above the last gcTS and
        below max_commit_ts.
        """
        known = self._indexer.applied  # the sorter may not know later records yet
        oldest = self._sorter.smallest_open()
        if oldest:
            ts = min(ts, oldest)
        if ts <= self.gc_ts or ts >= self._sorter.max_commit_ts or self._stopping.is_set():
            return
        self.begin_at(ts)
        failpoints.hit("gc.after_mark")
        needed = [
            start for commit, start in self._sorter.long_transactions().items() if commit > ts
        ]
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
