"""Find where a start resumes.

Records of the value log not known to be indexed are indexed again.
"""

from __future__ import annotations

import logging

from sluice.pump_service.store.collector import LATE_COMMIT_SLACK
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.index_position import IndexPosition
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb.binlog_kinds import PREWRITE

log = logging.getLogger(__name__)


def begin_of_indexing(
    value_log: ValueLog, index: BinlogIndex, position: IndexPosition
) -> RecordPointer:
    """Return the first record to index again.

    Where the index can't be trusted, readers are rejected until then. An index that was lost gets
    an estimate of what may have been purged.
    """
    first, end = value_log.first, value_log.end
    begin = min(position.head, position.handled)
    if begin > end or position.head > end:
        log.error(
            "%s points to %s, behind the value log's end %s (an older value log was put back?): "
            "the whole value log is indexed again",
            index.path,
            max(begin, position.head),
            end,
        )
        index.set_complete(complete=False)
        return first
    if begin <= first:
        if index.was_rebuilt:
            tp, ts = _first_timestamp(value_log)
            if first.fid > 0 and ts:
                # What was purged is older than this by at most the slack kept for late Commits.
                index.save_gc_ts(ts + LATE_COMMIT_SLACK)
            elif index.is_captured and tp != PREWRITE:
                # A capture's first record is a fake binlog where it began.
                index.save_gc_ts(ts)
        return first
    if not value_log.holds_record(begin):
        log.error(
            "no record at %s where %s points to: that segment is indexed again", begin, index.path
        )
        index.set_complete(complete=False)
        return RecordPointer(begin.fid, 0)
    return begin


def _first_timestamp(value_log: ValueLog) -> tuple[int, int]:
    """Return kind and timestamp (TSO) of the first record that has one; 0 without one."""
    for batch in value_log.scan(value_log.first, value_log.end):
        for tp, start, commit in zip(
            batch.tps.tolist(), batch.starts.tolist(), batch.commits.tolist(), strict=True
        ):
            if ts := start if tp == PREWRITE else commit:
                return tp, ts
    return PREWRITE, 0
