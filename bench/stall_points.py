"""Stop a process that applies at every point, take over from it, and wake it.

python -m sluice.bench.stall_points
    all of them, an hour or two
python -m sluice.bench.stall_points atomic parallel 1 10
    one pair of modes, each tenth step from the first on
python -m sluice.bench.stall_points atomic atomic 1 10 crash
    the first of the two goes on from where another one crashed
python -m sluice.bench.stall_points atomic atomic 1 1 drainer
    both go on from where a Drainer broke off
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.etl.freezer import Freezer
from tests.etl.freezing import Outcome, Point, left_open, run_point, steps_of, tell
from tests.etl.mariadb_fixture import MariaDBServer

_AFTER_CRASH = 60
"""Number of steps that are tried of a process that goes on from a crash."""


def _points(first: str, second: str, steps: list[str], start: int, step: int) -> Iterator[Point]:
    yield from (Point(first, second, stop) for stop in range(start, len(steps) + 1, step))


def _crashed(first: str, second: str, steps: list[str], start: int, step: int) -> Iterator[Point]:
    pairs = ((crash, stop) for crash in left_open(steps) for stop in range(1, _AFTER_CRASH))
    yield from (
        Point(first, second, stop, crash)
        for n, (crash, stop) in enumerate(pairs)
        if n % step == start % step
    )


def _told(outcome: Outcome) -> str:
    point = outcome.point
    crash = f"crash before step {point.crash}, " if point.crash else ""
    blocked = "BLOCKED " if outcome.blocked else ""
    return (
        f"{point.first}, {point.second}: {crash}stopped before {outcome.at!r}:"
        f" {blocked}{outcome.wrong} {outcome.ended}"
    )


def _taken_over(
    first: str, second: str, steps: list[str], start: int, step: int
) -> Iterator[Point]:
    yield from (
        Point(first, second, stop, drainer=True) for stop in range(start, len(steps) + 1, step)
    )


_KINDS = {"": _points, "crash": _crashed, "drainer": _taken_over}


def main(pairs: list[tuple[str, str]], start: int = 1, step: int = 1, *, kind: str = "") -> int:
    """Print a line for each point at which something differs or blocks, and the sums.

    Returns how many differ.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-freeze-") as name, Freezer() as freezer:
        folder = Path(name)
        server = MariaDBServer(folder)
        server.start()
        story = tell(server, folder)
        wrong = 0
        for first, second in pairs:
            steps = steps_of(freezer, server, story, folder, first, kind == "drainer")
            stopped = []
            for point in _KINDS[kind](first, second, steps, start, step):
                outcome = run_point(freezer, server, story, folder, point)
                if outcome.at or outcome.wrong:
                    stopped.append(outcome)
                if outcome.wrong or outcome.blocked:
                    print(_told(outcome), flush=True)
            differ = sum(bool(outcome.wrong) for outcome in stopped)
            blocked = sum(outcome.blocked for outcome in stopped)
            wrong += differ
            print(
                f"{first}, then {second}: {len(stopped)} points (of {len(steps)} steps), {differ}"
                f" differ, {blocked} block",
                flush=True,
            )
        server.kill()
    return wrong


if __name__ == "__main__":
    modes = [(a, b) for a in ("atomic", "parallel") for b in ("atomic", "parallel")]
    chosen = [(sys.argv[1], sys.argv[2])] if len(sys.argv) > 2 else modes
    numbers = [int(text) for text in sys.argv[3:5]]
    sys.exit(
        1
        if main(chosen, *numbers, kind=next((kind for kind in _KINDS if kind in sys.argv), ""))
        else 0
    )
