"""Try every point at which a process that lands by a persistent Spark worker can stand still.

The process, its worker or Spark stands still or dies there.

    python -m sluice.bench.worker_reuse           each once, on the recording `ddl`, half an hour
    python -m sluice.bench.worker_reuse 10 3      each tenth, from the third on
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from sluice.devstack.stack import Stack
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream, Window
from tests.etl.filled_pumps import fill
from tests.etl.landing.extract.test_explode import explode
from tests.etl.landing.landing_by_steps import Ground, Point, run_point
from tests.etl.relay_from_recording import RECORDINGS, committed
from tests.etl.spark_fixture import SparkServer
from tests.etl.stopped_work import Workshop

_WINDOWS = range(1, 9)
_DRIVER = ("read owners/", "read control", "send", "receive", "create windows/")
_WORKER = ("receive", "new_file", "send")
_AFTER_DRIVER = ("taken over", "killed", "Spark frozen", "Spark killed")
_AFTER_WORKER = ("taken over", "killed", "worker killed", "worker frozen")


def points() -> list[Point]:
    """Return all points, in a random order that stays the same."""
    driver = (
        Point(f"{step} {n}", "", then)
        for step, n, then in itertools.product(_DRIVER, _WINDOWS, _AFTER_DRIVER)
    )
    worker = (
        Point("", f"{step} {n}", then)
        for step, n, then in itertools.product(_WORKER, _WINDOWS, _AFTER_WORKER)
    )
    found = [*driver, *worker]
    random.Random(1).shuffle(found)
    return found


def main(step: int = 1, start: int = 0) -> int:
    """Print a line for each point; return how many are wrong."""
    rows = committed(RECORDINGS / "ddl")
    wanted, _ = explode(rows)  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-reuse-")))
        pumps = Stack(folder / "up")
        stack.callback(pumps.down)
        fill(pumps, RECORDINGS / "ddl")
        (folder / "spark").mkdir()
        spark = SparkServer(folder / "spark")
        stack.callback(spark.kill)
        spark.start()
        shop = stack.enter_context(Workshop("tests.etl.landing.landing_by_steps"))
        upstream = Upstream(
            f"http://127.0.0.1:{pumps.site().ports['cluster']}", initial_commit_ts=0
        )

        def ground(number: int, point: Point) -> Ground:
            settings = Settings(
                upstream,
                Relay((folder / f"relay-{number}").as_uri()),
                Downstream("127.0.0.1", port=1),
                spark=Spark(spark.remote),
                window=Window(max_transactions=80, idle_interval_ms=100),
            )
            patience_s = 2.0 if point.then == "worker frozen" else 60.0
            return Ground(shop, spark, settings, wanted, rows[-1][0], patience_s)

        return _run(points()[start::step], ground, folder)


def _run(chosen: Sequence[Point], ground: Callable[[int, Point], Ground], folder: Path) -> int:
    failures = 0
    for number, point in enumerate(chosen):
        began = time.monotonic()
        found = run_point(ground(number, point), folder / f"point-{number}", point)
        failures += found not in {"", "not reached"}
        print(f"{time.monotonic() - began:6.1f} s  {point}: {found or 'right'}", flush=True)
    print(f"{len(chosen)} points, {failures} wrong", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(1 if main(*(int(text) for text in sys.argv[1:3])) else 0)
