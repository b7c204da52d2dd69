"""kill -9 while a capture writes: the store shows whole transactions through its frontier, and the
rest comes once.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.store import Store
from tests.pump_service.capture.dying_sink import CAPTURED, PART_BYTES, whole
from tests.pump_service.storekit import MemoryStore, window

ROOT = Path(__file__).parents[3]
PLACES = [
    "writer.before_write", "vlog.torn", "vlog.write", "writer.after_write",
    "vlog.fsync", "writer.after_sync", "writer.after_ack",
    "rotate.before_footer", "rotate.after_footer", "rotate.after_create",
    "index.before_batch", "index.after_batch", "index.before_synced", "index.before_handled",
]  # fmt: skip
Rows = list[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def expected() -> Rows:
    """commit_ts, start_ts and payload of everything, from a sink that nothing happened to."""
    store, transactions = MemoryStore(), whole()
    writer = BinlogWriter(store, SchemaTracker((), 0), PART_BYTES)  # type: ignore[arg-type]
    writer.advance(iter(transactions), transactions[-1].commit_ts + 1)
    found = sorted((r.commit_ts, r.start_ts, r.payload) for r in store.records if r.tp == 0)
    assert len(found) - len({commit_ts for commit_ts, _, _ in found}) > 20, "some have parts"
    return found


@pytest.fixture(scope="module")
def lives() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pump_service.capture.dying_sink"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.communicate()


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_anywhere_loses_and_doubles_nothing(
    tmp_path: Path, lives: subprocess.Popen[str], expected: Rows, place: str
) -> None:
    rng = random.Random(place)
    data, died = tmp_path / "pump", 0
    for _ in range(4):
        nth = 1 if place.startswith("rotate") else rng.randrange(1, 5)
        died += _life(lives, data, f"{place}=kill@{nth}")
        store = Store.open(data, CAPTURED)
        try:
            assert store.wait_caught_up(60)
            frontier = store.max_commit_ts
            assert window(store) == [row for row in expected if row[0] <= frontier]
        finally:
            store.close()
    assert died
    assert not _life(lives, data, "")
    store = Store.open(data, CAPTURED)
    try:
        assert store.wait_caught_up(60)
        assert window(store) == expected
    finally:
        store.close()


def _life(lives: subprocess.Popen[str], data: Path, failpoint: str) -> bool:
    """Returns whether it was killed."""
    assert lives.stdin and lives.stdout
    lives.stdin.write(json.dumps([str(data), failpoint]) + "\n")
    lives.stdin.flush()
    code = int(lives.stdout.readline())
    assert code in (0, -signal.SIGKILL)
    return code != 0
