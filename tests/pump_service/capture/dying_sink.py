"""Lives of a capture's sink, for test_sink_crash: each opens the store, goes on at its frontier,
and is killed.

`python -m tests.pump_service.capture.dying_sink` forks them, so that none needs a start of its own:
a line of its input is the arguments of `live`, as JSON; the answer to it, once that life is over,
its exit code.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from sluice.pump_service.capture import binlog_writer
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.schema_tracker import SchemaTracker, meta_change
from sluice.pump_service.capture.transactions import CapturedTransaction
from sluice.pump_service.store import Store, failpoints
from tests import recorded_changes
from tests.pump_service.storekit import OPTIONS

PART_BYTES = 600
"""So few that some transactions have parts."""
_STEP_TRANSACTIONS = 60
_PATIENCE_S = 60
CAPTURED = dataclasses.replace(
    OPTIONS, is_captured=True, segment_limit=100_000, save_interval_s=0.01, sync_interval_s=0.02
)


def whole() -> list[CapturedTransaction]:
    """What the recorded cluster did."""
    last = "05-ddl"
    return recorded_changes.history_through(
        recorded_changes.checkpoint_ts(last)
    ) + recorded_changes.transactions(last)


def definitions_at(transactions: list[CapturedTransaction], ts: int) -> SchemaTracker:
    """The definitions as TiKV would show them at a timestamp."""
    schema = SchemaTracker((), 0)
    for _, group in itertools.groupby(
        (t for t in transactions if t.commit_ts <= ts), lambda t: t.commit_ts
    ):
        changes = (
            meta_change(c.key, c.value) for t in group for c in t.changes if c.key[:1] == b"m"
        )
        schema.apply([change for change in changes if change is not None])
    return schema


def live(data: str, failpoint: str) -> None:
    """Hand over everything behind the store's frontier, step by step."""
    transactions = whole()
    store = Store.open(data, CAPTURED)
    begin = store.max_commit_ts
    schema = definitions_at(transactions, begin)
    binlog_writer._GROUP_BYTES = 5000
    failpoints.configure(failpoint)
    writer = BinlogWriter(store, schema, PART_BYTES)
    rest = [t for t in transactions if t.commit_ts > begin]
    ends = [
        *dict.fromkeys(t.commit_ts for t in rest[_STEP_TRANSACTIONS::_STEP_TRANSACTIONS]),
        1 << 62,
    ]
    lo = begin
    for hi in ends:
        writer.advance(
            (t for t in rest if lo < t.commit_ts <= hi), min(hi, transactions[-1].commit_ts + 1)
        )
        lo = hi
    store.close()


def _begin(request: str) -> NoReturn:
    """In the process that was forked."""
    signal.alarm(_PATIENCE_S)
    try:
        live(*json.loads(request))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _main() -> None:
    whole()
    for request in sys.stdin:
        assert threading.active_count() == 1, (
            "others' locks would never be given back in a process that is forked"
        )
        pid = os.fork()
        if not pid:
            _begin(request)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
