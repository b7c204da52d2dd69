"""kill -9 at every step of a write: nothing acknowledged is lost, nothing is read twice."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import sluice.pump_service.store
from sluice.pump_service.store import Store, TxnOutcome, TxnOutcomeKind
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    paired,
    prewrite,
    pulled,
    settle,
    transactions,
    window,
    write,
)

ROOT = Path(__file__).parents[3]
STEP = 60_000 << 18

KILLS = [
    "writer.before_write=kill@7",
    "vlog.torn=kill@7",
    "vlog.write=kill@7",
    "writer.after_write=kill@7",
    "vlog.fsync=kill@7",
    "writer.after_sync=kill@7",
    "writer.after_ack=kill@7",
    "rotate.before_footer=kill@2",
    "rotate.after_footer=kill@2",
    "rotate.after_create=kill@3",
    "index.before_batch=kill@5",
    "index.after_batch=kill@5",
    "index.before_synced=kill@2",
    "index.before_handled=kill@2",
    "gc.after_mark=kill@1",
    "gc.after_unlink=kill@2",
    "gc.after_delete=kill@1",
]


ASKING = dataclasses.replace(OPTIONS, resolve_after_s=0.05, resolve_retry_s=0.05)


class _Life(NamedTuple):
    """What a process had acknowledged, and what its reader was given, when it ended by SIGKILL.

    `position`: where the reader was.
    """

    acknowledged: set[int]
    read: list[int]
    position: int


class _Lives:
    """Where processes begin that live on a store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pump_service.crashing_store"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def live(self, data: Path, failpoint: str, after: int = 0) -> _Life:
        """One, from its beginning to its end at the failpoint."""
        told = self._folder / str(len(list(self._folder.iterdir())))
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([str(data), after, failpoint, str(told)]) + "\n")
        self._process.stdin.flush()
        assert int(self._process.stdout.readline()) == -signal.SIGKILL, told.read_text()
        lines = told.read_text().splitlines()
        read = [int(line[1:]) for line in lines if line.startswith("r")]
        return _Life(
            {int(line) for line in lines if line.isdigit()}, read, read[-1] if read else after
        )

    def close(self) -> None:
        """Let go of the process that they begin in."""
        self._process.communicate()


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Lives]:
    lives = _Lives(tmp_path_factory.mktemp("told"))
    yield lives
    lives.close()


def _check(data: Path, acknowledged: set[int], read: list[int]) -> None:
    """Opens what is left, sends again what was not acknowledged, as TiDB does, and reads
    everything.
    """
    # A kill may cut a group of records anywhere, so the last thing a life has written may be the
    # Prewrite of a transaction that an earlier life had acknowledged: no Commit follows it, and
    # TiKV is asked.
    looked = threading.Event()

    def tikv(start_ts: int, key: bytes) -> TxnOutcome:
        return (
            TxnOutcome(TxnOutcomeKind.COMMITTED, start_ts + 1)
            if looked.is_set()
            else TxnOutcome(TxnOutcomeKind.PENDING)
        )

    store = Store.open(data, ASKING, tikv)
    try:
        assert store.wait_caught_up(60)
        kept = [BASE + i * STEP for i in acknowledged if BASE + i * STEP > store.gc_ts]
        assert all(store.lookup(start) and store.lookup(start + 1) for start in kept)
        looked.set()  # from now on what is missing may come from TiKV
        everything = []
        for i in range(max(acknowledged, default=-1) + 10):
            start = BASE + i * STEP
            everything += [prewrite(start, b"v" * 150), commit(start, start + 1)]
        write(store, *(r for r in everything if (r.start_ts - BASE) // STEP not in acknowledged))
        top = everything[-1].commit_ts + 5
        assert settle(store, top) == top
        gc_ts = store.gc_ts
        expected = paired(everything)
        assert window(store, gc_ts) == [row for row in expected if row[0] > gc_ts]
        # A reader that goes on from where it was gets the rest, and nothing again.
        position = max(read[-1] if read else 0, gc_ts)
        rest = [row[0] for row in pulled(store, expected[-1][0], position)]
        seen = [ts for ts in read if ts <= position] + rest
        assert seen == [row[0] for row in expected if row[0] in seen]
        assert set(seen) >= {row[0] for row in expected if row[0] > gc_ts}
        eventually(store.all_matched)
        assert store.stats().late_commits == 0
    finally:
        store.close()


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.split("=")[0])
def test_nothing_acknowledged_is_lost_and_nothing_read_twice(
    lives: _Lives, kill: str, tmp_path: Path
) -> None:
    life = lives.live(tmp_path / "data", kill)
    assert life.acknowledged
    _check(tmp_path / "data", life.acknowledged, life.read)


@pytest.mark.parametrize("lost", [False, True], ids=["index kept", "index lost"])
@pytest.mark.parametrize(
    "kill", ["index.before_batch", "index.after_batch", "index.before_handled"]
)
def test_being_killed_again_while_recovering_changes_nothing(
    lives: _Lives, kill: str, lost: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    first = lives.live(data, "vlog.torn=kill@9")
    if lost:
        shutil.rmtree(data / "kv")
    second = lives.live(data, f"{kill}=kill@1", first.position)
    third = lives.live(data, f"{kill}=kill@2", second.position)
    read = first.read + second.read + third.read
    assert read == sorted(set(read))
    _check(data, first.acknowledged | second.acknowledged | third.acknowledged, read)


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_prewrite_that_comes_again_after_its_commit_is_asked_about_and_nothing_is_late(
    restarts: int, tmp_path: Path
) -> None:
    """As a retry of TiDB's that was overtaken by its own transaction: no Commit will follow it."""
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(5)
    write(store, *records)
    write(store, records[0])
    for _ in range(restarts):
        store.close()
        store = Store.open(tmp_path, OPTIONS)
    more = transactions(5, 10)
    write(store, *more)
    # nobody knows how that one ended
    assert settle(store, more[-1].commit_ts, 0.1) < more[-1].commit_ts
    eventually(lambda: store.is_open(records[0].start_ts))
    store.close()

    store = Store.open(
        tmp_path, ASKING, lambda start_ts, key: TxnOutcome(TxnOutcomeKind.COMMITTED, start_ts + 150)
    )
    assert settle(store, more[-1].commit_ts) == more[-1].commit_ts
    assert window(store) == paired([*records, *more])
    eventually(store.all_matched)
    assert store.stats().late_commits == 0
    store.close()


def test_a_commit_that_is_new_below_what_is_published_is_late(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    write(store, *transactions(5))
    write(store, prewrite(BASE + 7), commit(BASE + 7, BASE + 8))
    write(store, prewrite(BASE), commit(BASE, BASE + 150))  # again, as it was
    eventually(store.all_matched)
    assert store.stats().late_commits == 1
    # another transaction's timestamp
    write(store, prewrite(BASE + 9), commit(BASE + 9, BASE + 150))
    eventually(store.all_matched)
    assert store.stats().late_commits == 2
    store.close()


def test_every_failpoint_of_the_store_is_tried() -> None:
    folder = Path(sluice.pump_service.store.__file__).parent
    placed = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'failpoints\.(?:hit|due)\("([\w.]+)"\)', path.read_text())
    }
    assert placed == {kill.split("=")[0] for kill in KILLS}
