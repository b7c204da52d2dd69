"""Landing through standing workers, where the process that lands and its worker can be stopped at
any of their steps.

The suite runs some points, `bench/worker_reuse.py` all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl import load_settings, run_land
from sluice.etl.landing import _job_queue as _ahead
from sluice.etl.landing.planner import WindowPlan, WindowPlanner
from sluice.etl.settings import Settings
from sluice.etl.spark import persistent_worker as standing
from sluice.etl.spark import resilient_function
from tests.etl.spark_fixture import SparkServer
from tests.etl.stopped_work import Worker, Workshop, by_steps, leave_nothing, state_of, workers

_FROZEN_S = 3.0


@dataclass(frozen=True)
class Point:
    """Before which step of its the process that lands is stopped, or its worker ("create windows/
    3"), and what comes then: "taken over" by another process before it goes on, "killed", "worker
    killed", "worker frozen" for good, "Spark frozen" for a while, "Spark killed".
    """

    driver: str
    worker: str
    then: str


@dataclass(frozen=True)
class Ground:
    """What a point needs.

    `settings` with a relay log of its own; `rows` are what is to be landed through `until_ts`
    (TSO); `patience_s`: how long a worker may be silent.
    """

    shop: Workshop
    spark: SparkServer
    settings: Settings
    rows: pa.Table
    until_ts: int
    patience_s: float = 300.0


def land(config: str, until_ts: str, patience_s: str, worker_stop: str, told: str) -> None:
    """Land through a timestamp (TSO), each window by a standing worker.

    The worker stops itself, once, before the step `worker_stop`, and `told`.<its id> has its steps.
    """
    _through_standing_workers(worker_stop, told)
    standing._HEARTBEAT_TIMEOUT_S = float(patience_s)
    standing._START_TIMEOUT_S, standing._MAX_LIFETIME_S = (
        300.0,
        3_000.0,
    )  # the steps of a busy machine are those of a quiet one
    resilient_function._CORE_TIMEOUT_S = 300.0
    run_land(load_settings(config), start_ts=0, until_ts=int(until_ts), run_seconds=600)


def _through_standing_workers(worker_stop: str, told: str) -> None:
    """Every window of this process is small."""
    plan = WindowPlanner.plan

    def small(self: WindowPlanner, lo: int, *, empty_now: bool = False) -> WindowPlan | None:
        found = plan(self, lo, empty_now=empty_now)
        return None if found is None else dataclasses.replace(found, limited=False)

    WindowPlanner.plan = small  # type: ignore[method-assign]
    if worker_stop:
        ranges = _ahead.LandRanges
        _ahead.LandRanges = lambda *args: by_steps(ranges(*args), worker_stop, told)  # type: ignore[assignment,misc]


def run_point(ground: Ground, folder: Path, point: Point) -> str:
    """What is wrong after one of the points.

    "" where all is landed once, "not reached" where no step was it.
    """
    folder.mkdir()
    with _begun(ground, folder, point) as (process, worker):
        if process is None:
            return "not reached"
        ended = _go_on(ground, process, worker, point.then)
    found = wrong(ground)
    if ended not in {"done", ""} and not (point.then == "taken over" and "ClaimLostError" in ended):
        return f"{ended} {found}"
    return found


def _go_on(ground: Ground, process: Worker, worker: int, then: str) -> str:
    """How the process ended; "" if it was killed."""
    if then in {"taken over", "killed"}:
        if then == "killed":
            process.kill()
        run_land(ground.settings, start_ts=0, until_ts=ground.until_ts, run_seconds=300)
        if worker:  # it wakes up late
            _signal(worker, signal.SIGCONT)
            time.sleep(0.2)
        process.wake()
        return process.ended() if then == "taken over" else ""
    if then == "worker killed":
        _signal(worker, signal.SIGKILL)
    if then == "Spark killed":
        ground.spark.kill()
        ground.spark.start()
    if then == "Spark frozen":
        with ground.spark.frozen():
            process.wake()
            time.sleep(_FROZEN_S)
    process.wake()
    ended = process.ended()
    if then == "worker frozen":
        return ended if _is_gone(worker) else f"{ended}, but its core isn't free"
    return ended


def _is_gone(worker: int) -> bool:
    deadline = time.monotonic() + 60
    while state_of(worker) not in {"Z", ""}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wrong(ground: Ground) -> str:
    """How the relay log differs from what was to be landed; "" if it doesn't."""
    relay = ground.settings.open_relay()
    windows = list(relay.windows(0))
    if not windows or windows[0].lo != 0:
        return "it doesn't begin at 0"
    if any(before.hi != after.lo for before, after in itertools.pairwise(windows)):
        return "the chain is broken"
    found = relay.read(windows)
    found = found.filter(pc.less_equal(found["commit_ts"], ground.until_ts))
    return (
        ""
        if found.equals(ground.rows)
        else f"{found.num_rows} rows, not those {ground.rows.num_rows}"
    )


@contextlib.contextmanager
def _begun(ground: Ground, folder: Path, point: Point) -> Iterator[tuple[Worker | None, int]]:
    """A process that lands and is stopped, or whose worker, by its id, is.

    They don't outlive the context.
    """
    settings, config, told = ground.settings, folder / "sluice.toml", str(folder / "worker")
    config.write_text(
        f'[upstream]\npd-urls = "{settings.upstream.pd_urls}"\n[relay]\nurl ='
        f' "{settings.relay.url}"\n[downstream]\nhost = "x"\n[spark]\nremote ='
        f' "{settings.spark.remote}"\n[window]\nmax-transactions ='
        f" {settings.window.max_transactions}\ninterval-ms = 1\n"
    )
    args = str(config), str(ground.until_ts), str(ground.patience_s), point.worker, told
    process = ground.shop.start(land, args, folder / "driver", point.driver or 0)
    try:
        if point.worker:
            worker = _stopped_worker(process, told)
            yield (process if worker else None), worker
        else:
            yield (process if process.rests() else None), 0
    finally:
        process.kill()
        leave_nothing(told)


def _stopped_worker(process: Worker, told: str) -> int:
    """The worker that stands still; 0 if none does before the process ends."""
    while process.is_alive():
        stopped = [pid for pid in workers(told) if state_of(pid) == "T"]
        if stopped:
            return stopped[0]
        time.sleep(0.01)
    return 0


def _signal(pid: int, wanted: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, wanted)
