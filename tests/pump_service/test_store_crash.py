"""kill -9 at every step of a write: nothing acknowledged is lost, nothing is read twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from storekit import BASE, OPTIONS, commit, eventually, paired, prewrite, settle, window, write

from pump_service.store import Store

CHILD = Path(__file__).with_name("crashing_store.py")

KILLS = [
    "writer.before_write=kill@7",
    "vlog.torn=kill@7",
    "vlog.write=kill@7",
    "writer.after_write=kill@7",
    "writer.after_sync=kill@7",
    "writer.after_ack=kill@7",
    "rotate.before_footer=kill@2",
    "rotate.after_footer=kill@2",
    "rotate.after_create=kill@3",
    "index.before_batch=kill@5",
    "index.after_batch=kill@5",
    "index.before_handled=kill@2",
    "gc.after_mark=kill@1",
    "gc.after_unlink=kill@2",
    "gc.after_delete=kill@1",
]


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.split("=")[0])
def test_nothing_acknowledged_is_lost(kill: str, tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path / "data")],
        env=os.environ | {"SLUICE_FAILPOINTS": kill, "PYTHONPATH": str(CHILD.parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    acknowledged = {int(line) for line in child.stdout.splitlines() if line.isdigit()}
    assert acknowledged
    store = Store.open(tmp_path / "data", OPTIONS)
    try:
        assert store.wait_caught_up(10)
        # What was written but not acknowledged may be there, half of it perhaps: TiDB sends such records again.
        everything = []
        for i in range(max(acknowledged, default=-1) + 10):
            start = BASE + i * (60_000 << 18)
            everything += [prewrite(start, b"v" * 150), commit(start, start + 1)]
        again = [r for r in everything if (r.start_ts - BASE) // (60_000 << 18) not in acknowledged]
        write(store, *again)
        top = everything[-1].commit_ts + 5
        assert settle(store, top) == top
        gc_ts = store.gc_ts
        assert window(store, gc_ts) == [row for row in paired(everything) if row[0] > gc_ts]
        eventually(store.all_matched)
    finally:
        store.close()
