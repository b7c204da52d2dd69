"""Watch and disturb an endurance run: arrivals downstream, commits, kills and DDL; its samples."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql

from sluice.bench import soak
from sluice.devstack import Stack
from sluice.devstack.control import ClusterControl, Unreachable
from sluice.devstack.launch import LOOPBACK, PUMP_NAMES, StackPaths, connect
from sluice.devstack.state import StackError
from sluice.tidb import tso

DATABASE, TABLES = "sluice_load", 20

COLLECT_EVERY_S = 300.0
"""Pumps collect hourly, counted from their start; killed ones might never.

TiDB does every ten minutes.
"""

GC_LIFE_S = 600.0
"""TiDB's tidb_gc_life_time."""

PROBE_S = 0.05

COMES_S = 300.0

SETTLED_MS = 1_000.0


@dataclass(slots=True)
class Endured:
    """The run's result.

    `killed`: [s since the beginning, what]. `refused_ddls`: those that the stand-in could not do
    in its time.
    """

    course: Course
    seconds: float = 0.0
    transactions: int = 0
    ddls: int = 0
    refused_ddls: int = 0
    killed: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    compared: str = ""
    wrong: list[str] = field(default_factory=list)


class Arrivals(threading.Thread):
    """Note when each transaction's row was visible downstream.

    Reads over a connection that comes back when MariaDB does.
    """

    def __init__(self, site: StackPaths) -> None:
        super().__init__(name="arrivals", daemon=True)
        self._site = site
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._new: list[tuple[int, float]] = []
        self._last = 0
        self._late: set[int] = set()
        """Numbers below `_last` that haven't arrived.

        A later transaction may commit before an earlier one.
        """

    def run(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(pymysql.err.Error, OSError),
                contextlib.closing(connect(self._site)) as database,
            ):
                while not self._over.wait(PROBE_S):
                    self._look(database)

    def _look(self, database: Any) -> None:
        since = min(self._late, default=self._last + 1)
        with database.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {DATABASE}.txn WHERE id >= %s ORDER BY id", (since,))
            now = time.time() * 1000
            found = [
                number
                for (number,) in cursor.fetchall()
                if number > self._last or number in self._late
            ]
        if found:
            top = max(self._last, found[-1])
            self._late = (self._late | set(range(self._last + 1, top + 1))) - set(found)
            self._last = top
            with self._lock:
                self._new += [(number, now) for number in found]

    def taken(self) -> list[tuple[int, float]]:
        """Return (transaction, Unix ms) of all that came since the last call."""
        with self._lock:
            new, self._new = self._new, []
        return new

    def stop(self) -> None:
        self._over.set()
        self.join(30)


class Commits:
    """Times of commits upstream, read as they come, forgotten when they have arrived."""

    def __init__(self, control: ClusterControl) -> None:
        self._control = control
        self._after = 0
        self._wall_ms: dict[int, float] = {}
        self._waiting: list[tuple[int, float]] = []
        self.count = 0

    def read(self, settled_ms: float = SETTLED_MS) -> None:
        """Read all commits but the youngest: an earlier one may still be noted before those."""
        until = time.time() * 1000 - settled_ms
        for commit_ts, wall_ms, number in self._control.numbered_commits(self._after):
            if wall_ms > until:
                break
            self._after = commit_ts
            if number is not None:
                self._wall_ms[number] = wall_ms
                self.count += 1

    def lags(self, arrivals: list[tuple[int, float]]) -> list[float]:
        """Return how late these came, in ms, ascending.

        The youngest, whose commit isn't known yet, are reported with the next ones.
        """
        with contextlib.suppress(Unreachable):
            self.read()
        arrivals, self._waiting = self._waiting + arrivals, []
        found = []
        for number, at in arrivals:
            if number in self._wall_ms:
                found.append(at - self._wall_ms.pop(number))
            else:
                self._waiting.append((number, at))
        return sorted(found)


class Disturbance:
    """Kills and DDL by the clock, in a thread of their own."""

    def __init__(
        self, stack: Stack, control: ClusterControl, done: Endured, report: Callable[[str], None]
    ) -> None:
        self._stack, self._control, self._done, self._report = stack, control, done, report
        self._began = time.monotonic()
        self._rng = random.Random(done.course.seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturbance", daemon=True)
        self.failure: Exception | None = None

    def __enter__(self) -> Disturbance:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(COMES_S)

    def _run(self) -> None:
        course = self._done.course
        kill_at, ddl_at = (
            self._next(self._began, each) for each in (course.kill_every_s, course.ddl_every_s)
        )
        collect_at = self._began + COLLECT_EVERY_S
        try:
            while not self._over.wait(0.5):
                now = time.monotonic()
                if now >= ddl_at:
                    ddl_at = self._next(now, course.ddl_every_s)
                    self._add_column()
                if now >= kill_at:
                    kill_at = self._next(now, course.kill_every_s)
                    if victim := soak.kill(self._stack, self._rng):
                        self._done.killed.append((round(now - self._began, 1), victim))
                        self._report(f"kill -9: {victim}")
                if now >= collect_at:
                    collect_at = now + COLLECT_EVERY_S
                    with contextlib.suppress(Unreachable):
                        self._control.collect_garbage(
                            tso.compose(int((time.time() - GC_LIFE_S) * 1000))
                        )
                    collect_versions(self._stack)
                soak.revive(self._stack)
        except Exception as error:
            self.failure = error

    def _add_column(self) -> None:
        """Add a column under a new name: a refused one may have been added all the same."""
        table, number = (
            self._rng.randrange(1, TABLES + 1),
            self._done.ddls + self._done.refused_ddls,
        )
        try:
            self._control.add_column(DATABASE, f"load_{table}", f"c{number}")
        except StackError as error:
            self._done.refused_ddls += 1
            self._report(f"a DDL was refused: {error}")
        else:
            self._done.ddls += 1

    def _next(self, now: float, every_s: float) -> float:
        return now + every_s * self._rng.uniform(0.5, 1.5) if every_s else float("inf")


def collect_versions(stack: Stack) -> None:
    """Order pumps to give up what they need not keep.

    One that was killed a moment ago does next time.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ports = stack.site().ports
    for name in PUMP_NAMES:
        with contextlib.suppress(OSError):
            opener.open(
                f"http://{LOOPBACK}:{ports[name]}/debug/gc/trigger", data=b"", timeout=5
            ).close()


@dataclass(frozen=True, slots=True)
class Course:
    """The run's actions and their times; `*_every_s` 0 is never."""

    hours: float
    rate: float
    kill_every_s: float
    ddl_every_s: float
    mode: str
    seed: int


@dataclass(slots=True)
class Sample:
    """Ten seconds.

    `rate`: transactions/s that became visible downstream. Lags in ms, None where none did.
    `memory`: MiB by kind of process. `cpu`: per cent of a core, likewise. `files`, `mib`: of each
    store.
    """

    at_s: float
    rate: float
    p50_ms: float | None
    p95_ms: float | None
    max_ms: float | None
    memory: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    mib: dict[str, float] = field(default_factory=dict)
