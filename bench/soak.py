"""Replay for long while something is killed every few seconds.

kill -9 of tasks, of the processes that work for them, Spark's workers, Spark, Airflow, pumps,
downstream.

The recording `shop` is replayed slowly, so that every kill lands in the middle of traffic.
Whatever died of the stack is started again, as an operator's supervisor would; tasks are Airflow's
business. Meanwhile a reader sums the accounts of the bank downstream: transfers keep the sum, so
in mode `atomic` every read must find the same one. In the end the downstream is compared with the
recording's last snapshot.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from sluice.devstack import Stack, replay
from sluice.devstack.compare import compare
from sluice.devstack.control import AirflowClient
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline
from sluice.devstack.launch import StackPaths, connect
from sluice.devstack.progress_view import ProgressView
from sluice.devstack.recording import Recording
from sluice.devstack.replay import task_processes, worker_processes
from sluice.devstack.repository import recording_folder
from sluice.devstack.state import StackError
from sluice.tidb import tso

RECORDING = "tests/recordings/shop"
VICTIMS = {
    "task": 4,
    "resident": 4,
    "spark-worker": 6,
    "spark": 2,
    "mariadb": 4,
    "pump-1": 2,
    "pump-2": 2,
    "airflow-scheduler": 1,
    "airflow-worker": 2,
    "etcd": 1,
    "upstream": 2,
}
"""Kinds of processes that are killed, each with its share.

`upstream`: etcd is killed while PD and TiKV don't answer.
"""
_GONE_S = 10.0
_SUM = "SELECT SUM(balance) FROM bank.account"
_PATIENCE_S = 300.0


@dataclass(slots=True)
class SoakResult:
    """A soak's result.

    `sums`: how often the reader saw which sum of all accounts, once they were loaded.
    """

    mode: str
    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    sums: dict[str, int] = field(default_factory=dict)
    checkpoint_went_back: int = 0
    tables: int = 0
    rows_compared: int = 0
    differences: list[str] = field(default_factory=list)


class _Reader(threading.Thread):
    """Sum the accounts again and again, and watch that the checkpoint never goes back."""

    def __init__(self, site: StackPaths, loaded_ts: int, view: ProgressView) -> None:
        super().__init__(name="bank-reader", daemon=True)
        self._site = site
        self._loaded_ts = loaded_ts
        self._checkpoints = view.checkpoint
        self._over = threading.Event()
        self.sums: Counter[str] = Counter()
        self.went_back = 0

    def run(self) -> None:
        last = 0
        while not self._over.wait(0.02):
            with (
                contextlib.suppress(Exception),
                contextlib.closing(connect(self._site)) as database,
                database.cursor() as cursor,
            ):
                while not self._over.wait(0.02):
                    checkpoint = self._checkpoints.read() or 0
                    if 0 < checkpoint < last:
                        self.went_back += 1
                    last = checkpoint or last
                    if checkpoint >= self._loaded_ts:
                        cursor.execute("COMMIT")
                        cursor.execute(_SUM)
                        (found,) = cursor.fetchone() or (None,)
                        self.sums[str(found)] += 1

    def stop(self) -> None:
        self._over.set()
        self.join(30)


@dataclass(frozen=True, slots=True)
class Kills:
    """Kill `count` times, about `interval_s` apart; `seed` decides what and when."""

    count: int
    interval_s: float
    seed: int


def measure(stack: Stack, mode: str, kills: Kills, report: Callable[[str], None]) -> SoakResult:
    """Kill while a recording is replayed. Raises StackError when something doesn't come back."""
    folder = recording_folder(RECORDING)
    recording = Recording(folder)
    labels = sorted(recording.labels, key=lambda label: label.ts)
    result = SoakResult(mode, kills.seed)
    rng = random.Random(kills.seed)
    recorded_s = tso.ms_between(labels[0].ts, labels[-1].ts) / 1000
    speed = max(0.01, min(1.0, recorded_s / (kills.count * kills.interval_s * 1.3)))
    with fresh_stack(stack, folder, report):
        site = stack.site()
        airflow = AirflowClient(stack.home, site.ports["airflow"])
        wait_pipeline(stack, airflow)
        view = ProgressView(site)
        reader = _Reader(site, labels[0].ts, ProgressView(site))
        reader.start()
        began = time.monotonic()
        try:
            replay.send(stack, labels[-1].name, f"{speed:.3f}", "range")
            report(f"replaying at {speed:.3f} times the recorded speed")
            done = 0
            while done < kills.count:
                time.sleep(rng.uniform(0.3, 1.7) * kills.interval_s)
                if not (victim := kill(stack, rng)):
                    continue
                done += 1
                result.kills[victim] = result.kills.get(victim, 0) + 1
                progress = view.progress()
                report(
                    f"kill {done}/{kills.count}: {victim}; landed {progress.landed}, applied"
                    f" {progress.applied}, received {progress.received}"
                )
                revive(stack)
            report("no more kills: waiting for the rest")
            last = labels[-1]
            replay.wait_applied(
                stack,
                view,
                replay.ReplayGoal(last.ts),
                replay.ReplayObserver(lambda progress: None, report, lambda: revive(stack)),
                replay.StallTimeouts(60, _PATIENCE_S),
            )
            result.seconds = time.monotonic() - began
        finally:
            reader.stop()
            view.close()
        result.sums, result.checkpoint_went_back = dict(reader.sums), reader.went_back
        with contextlib.closing(connect(site)) as database:
            found = compare(folder / "snapshots" / labels[-1].name, database)
        result.tables, result.rows_compared, result.differences = (
            found.tables,
            found.rows,
            list(found.differences),
        )
    return result


def revive(stack: Stack) -> None:
    """Start again what has died of the stack, as a supervisor would."""
    for name in stack.dead():
        stack.up([name])


def kill(stack: Stack, rng: random.Random) -> str:
    """Kill one process of a kind chosen by chance (see VICTIMS) with -9.

    Returns the kind, "" if there is none just now.
    """
    victim = rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    started = stack.state().parts
    try:
        if victim == "task":
            found = task_processes(stack)
        elif victim == "resident":
            found = worker_processes(stack)
        elif victim == "upstream":
            _upstream_gone(
                *(psutil.Process(started[name].process.pid) for name in ("cluster", "etcd"))
            )
            return victim
        elif victim == "airflow-worker":
            found = _children(started["airflow-scheduler"].process.pid)
        elif victim == "spark-worker":
            found = [
                p
                for p in psutil.Process(started["spark"].process.pid).children(recursive=True)
                if "python" in p.name()
            ]
        else:
            found = [psutil.Process(started[victim].process.pid)]
        chosen = rng.choice(found)
        chosen.kill()
    except (KeyError, IndexError, psutil.Error):
        return ""
    return victim


def _upstream_gone(cluster: psutil.Process, etcd: psutil.Process) -> None:
    """Suspend all servers of the upstream for a while.

    The stand-in cluster keeps what it plays in memory, so it stands still and isn't killed.
    """
    cluster.suspend()
    try:
        etcd.kill()
        time.sleep(_GONE_S)
    finally:
        cluster.resume()


def _children(pid: int) -> list[psutil.Process]:
    return [
        child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE
    ]


def check(result: SoakResult) -> list[str]:
    """Return what went wrong, in words; [] if nothing did."""
    wrong = (
        [f"{len(result.differences)} differences, the first: {result.differences[0]}"]
        if result.differences
        else []
    )
    if result.checkpoint_went_back:
        wrong.append(f"the checkpoint went back {result.checkpoint_went_back} times")
    if result.mode == "atomic" and len(result.sums) > 1:
        wrong.append(f"readers saw {len(result.sums)} different sums: {result.sums}")
    if not result.sums:
        raise StackError("the reader never saw the bank's accounts: nothing was checked")
    return wrong
