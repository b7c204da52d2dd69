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
    value_log: ValueLog, index: BinlogIndex, standing: IndexPosition
) -> RecordPointer:
    """Return the first record to index again.

    Where the index can't be trusted, readers are rejected until then. An index that was lost gets
    an estimate of what may have been purged.
    """
    first, end = value_log.first, value_log.end
    begin = min(standing.head, standing.handled)
    if begin > end or standing.head > end:
        log.error(
            "%s points to %s, behind the value log's end %s (an older value log was put back?): "
            "the whole value log is indexed again",
            index.path,
            max(begin, standing.head),
            end,
        )
        index.set_complete(complete=False)
        return first
    if begin <= first:
        if index.was_rebuilt and first.fid > 0:
            index.save_gc_ts(_estimate_gc_ts(value_log))
        elif index.was_rebuilt and index.is_captured:
            index.save_gc_ts(_beginning(value_log))
        return first
    if not value_log.holds_record(begin):
        log.error(
            "no record at %s where %s points to: that segment is indexed again", begin, index.path
        )
        index.set_complete(complete=False)
        return RecordPointer(begin.fid, 0)
    return begin


def _beginning(value_log: ValueLog) -> int:
    """Return where a capture began: its first record is a fake binlog there; 0 without one."""
    for batch in value_log.scan(value_log.first, value_log.end):
        if len(batch.tps):
            return 0 if batch.tps[0] == PREWRITE else int(batch.commits[0])
    return 0


def _estimate_gc_ts(value_log: ValueLog) -> int:
    """Estimate gcTS, which is lost with the index.

    Segments have been purged, and their records are older than what is left by at most the slack
    kept for late Commits.
    """
    for batch in value_log.scan(value_log.first, value_log.end):
        for tp, start, commit in zip(
            batch.tps.tolist(), batch.starts.tolist(), batch.commits.tolist(), strict=True
        ):
            ts = start if tp == PREWRITE else commit
            if ts:
                return int(ts) + LATE_COMMIT_SLACK
    return 0
