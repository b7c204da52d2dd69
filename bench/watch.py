"""Check an hour of traffic with DDL under continuous verification for false alarms.

It also checks that a corruption is found.

    python -m sluice.bench.watch [--minutes 60] [--live | --recording FOLDER] [--seed 1]
        [--home FOLDER]

An invented shop's traffic with a DDL of another kind every few seconds
(`sluice.bench.synthetic_rows`), live traffic with a column more every few seconds, or a recording,
slowed down, goes through pumps, landing, Spark and applying into MariaDB. Beside it both sides are
compared without a pause, by a clock that runs faster, so that the round through the whole comes by
every five minutes. When the traffic is over one value is changed downstream, and has to be found.
Prints one JSON object; the exit code is 1 if anything was reported that is the same, or if the
change wasn't found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sluice.bench.synthetic_rows import invent
from sluice.devstack import Stack, replay
from sluice.devstack.control import ClusterControl
from sluice.devstack.damage import corrupt_one_value
from sluice.devstack.launch import connect
from sluice.devstack.recording import Recording
from sluice.devstack.state import StackError
from sluice.errors import ours
from sluice.etl.apply import run_apply
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.landing import run_land
from sluice.etl.settings import Settings, load_settings
from sluice.etl.verify.continuous import ContinuousSummary, ContinuousVerifier
from sluice.tidb import tso

PARTS = ["etcd", "cluster", "pump-1", "pump-2", "spark", "mariadb"]
DATABASE, TABLES = "sluice_load", 6
TRAFFIC = {
    "transactions": None,
    "rows": 8,
    "tables": TABLES,
    "updates": 0.45,
    "deletes": 0.2,
    "database": DATABASE,
}
_ROUND_S = 300.0
_FOUND_S = 1_200.0
_DDL_S = 8.0
_SAY_S = 60.0
_INVENTED_PER_S = 15
_SETTINGS = "[verify]\ndelay-ms = 2000\ndays = 1\n"


@dataclass
class Watched:
    """The run's result.

    `rows`, `keys`: compared, of changed rows; `looked_at_again`: rows that seemed to differ at one
    checkpoint; `false_alarms`: those reported. `found_s`: how long after the change it was found,
    None if it wasn't.
    """

    traffic: str
    minutes: float = 0.0
    transactions: int = 0
    ddls: int = 0
    passes: int = 0
    keys: int = 0
    rows: int = 0
    looked_at_again: int = 0
    false_alarms: int = 0
    restarts: int = 0
    notes: tuple[str, ...] = ()
    reported: tuple[dict[str, Any], ...] = ()
    planted: str = ""
    found_s: float | None = None


class Replication:
    """Landing and applying in threads until `stop`; what passes is waited for."""

    def __init__(self, settings: Settings) -> None:
        self._stop = threading.Event()
        self.restarts = 0
        self.error: BaseException | None = None
        work: list[Callable[[], object]] = [
            lambda: run_land(settings, stop=self._stop, start_ts=0),
            lambda: run_apply(settings, stop=self._stop),
        ]
        self._threads = [
            threading.Thread(target=self._keep, args=(each,), daemon=True) for each in work
        ]
        for thread in self._threads:
            thread.start()

    def _keep(self, work: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:
                if not ours(error).transient:
                    self.error = error
                    return
                self.restarts += 1
                time.sleep(1)

    def stop(self) -> None:
        """End both."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


class Watcher:
    """Continuous verification in a thread. `summary` is what it did."""

    def __init__(self, settings: Settings) -> None:
        self._stop = threading.Event()
        self._open = contextlib.ExitStack()
        upstream = self._open.enter_context(UpstreamCatalog.connect(settings))
        began_s, began_ms = time.monotonic(), time.time_ns() // 1_000_000
        fast = 86_400 / _ROUND_S
        self._work = ContinuousVerifier(
            settings,
            upstream,
            self._stop,
            lambda: began_ms + int((time.monotonic() - began_s) * 1000 * fast),
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work.run(None)
        except BaseException as error:
            self.error = error

    def current_summary(self) -> ContinuousSummary:
        """Return the summary of what it has done until now."""
        if self.error is not None:
            raise self.error
        return self._work.current_summary()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(60)
        self._work.close()
        self._open.close()


def report(what: str) -> None:
    """Print a line with the time on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def pipeline(home: Path, recording: Path | None) -> Iterator[tuple[Stack, Settings]]:
    """Yield a stack without Airflow."""
    stack = Stack(home, settings=_SETTINGS)
    try:
        stack.up(PARTS, recording=recording, report=report, live=recording is None)
        yield stack, load_settings(str(stack.site().config))
    finally:
        stack.down()


def watch(home: Path, minutes: float, recording: Path | None) -> Watched:
    """Run it. Raises StackError, and what ended a part."""
    done = Watched(str(recording or "live"), ddls=_ddls(recording) if recording else 0)
    with pipeline(home, recording) as (stack, settings):
        control = ClusterControl(stack.site().ports["cluster-control"])
        replication = Replication(settings)
        watcher: Watcher | None = None
        began = time.monotonic()
        try:
            traffic = (
                _live(control, done) if recording is None else _recorded(stack, control, minutes)
            )
            next_say = began
            while time.monotonic() - began < minutes * 60 and next(traffic):
                if replication.error is not None:
                    raise replication.error
                if watcher is None and _checkpoint(stack):
                    watcher = Watcher(settings)
                if time.monotonic() >= next_say:
                    next_say += _SAY_S
                    _say(done, control, watcher)
                time.sleep(0.5)
            done.minutes = round((time.monotonic() - began) / 60, 1)
            if watcher is None:
                raise StackError("nothing was applied")
            _plant(done, stack, control, watcher)
        finally:
            if watcher is not None:
                watcher.stop()
            replication.stop()
            done.restarts = replication.restarts
            control.stop()
    return done


def _recorded(stack: Stack, control: ClusterControl, minutes: float) -> Iterator[bool]:
    """Replay the recording, so slowly that it lasts; yield false when it is over."""
    labels = Recording(stack.site().recording).labels
    speed = tso.ms_between(labels[0].ts, labels[-1].ts) / (minutes * 60_000)
    report(f"replaying at {speed:.4f} times the recorded speed")
    replay.send(stack, labels[-1].name, f"{speed:.4f}", "range")
    while _asked(control).get("state") not in ("idle", "done"):
        yield True
    yield False


def _asked(control: ClusterControl) -> dict[str, Any]:
    """Return the stand-in's status; nothing while a busy machine doesn't let it answer."""
    try:
        return control.status()
    except StackError as error:
        report(str(error))
        return {}


def _ddls(recording: Path) -> int:
    return sum(
        1
        for one in Recording(recording).transactions().values()
        if one.ddl_job_id and one.commit_ts
    )


def _live(control: ClusterControl, done: Watched) -> Iterator[bool]:
    """Run live traffic, adding a column every few seconds, to each table in turn."""
    control.workload({"rate": 25, **TRAFFIC})
    due = time.monotonic() + 2 * _DDL_S
    while True:
        yield True
        if time.monotonic() >= due:
            due = _add_column(control, done)


def _add_column(control: ClusterControl, done: Watched) -> float:
    """Add a column, and return when the next one is due.

    One that a busy machine doesn't take is asked for again.
    """
    try:
        control.add_column(DATABASE, f"load_{done.ddls % TABLES + 1}", f"c{done.ddls}")
        done.ddls += 1
    except StackError as error:
        report(str(error))
    return time.monotonic() + _DDL_S


def _checkpoint(stack: Stack) -> int:
    with contextlib.closing(connect(stack.site())) as database, database.cursor() as cursor:
        try:
            cursor.execute(
                "SELECT JSON_VALUE(checkPoint, '$.commitTS') FROM tidb_binlog.checkpoint"
            )
        except Exception:
            return 0
        return int((cursor.fetchone() or (0,))[0] or 0)


def _say(done: Watched, control: ClusterControl, watcher: Watcher | None) -> None:
    found = watcher.current_summary() if watcher is not None else ContinuousSummary()
    commits = _asked(control).get("commits", "?")
    report(
        f"{commits} commits, {done.ddls} DDL; {found.passes} passes, {found.keys} changed keys,"
        f" {found.rows} rows compared, {found.looked_at_again} looked at again,"
        f" {len(found.differences)} reported"
    )


def _plant(done: Watched, stack: Stack, control: ClusterControl, watcher: Watcher) -> None:
    """End the traffic, change one value downstream, and wait until it is found."""
    with contextlib.suppress(StackError):
        control.stop()
    newest = int(control.status()["newest_commit_ts"])
    deadline = time.monotonic() + _FOUND_S
    while _checkpoint(stack) < newest:
        _until(deadline, "applying did not catch up")
    found = watcher.current_summary()
    done.transactions = int(_asked(control).get("commits", 0))
    done.passes, done.keys, done.rows = found.passes, found.keys, found.rows
    done.looked_at_again, done.false_alarms = found.looked_at_again, len(found.differences)
    done.notes = tuple(dict.fromkeys(found.notes))
    done.reported = tuple(one.to_json() for one in found.differences)
    with contextlib.closing(connect(stack.site())) as database:
        wrong = corrupt_one_value(database, _counts(database))
    if wrong is None:
        raise StackError("there is no table of which a value could be changed")
    done.planted = str(wrong)
    began = time.monotonic()
    while (
        len(watcher.current_summary().differences) == done.false_alarms
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    if len(watcher.current_summary().differences) > done.false_alarms:
        done.found_s = round(time.monotonic() - began, 1)


def _counts(database: Any) -> dict[str, int]:
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES WHERE"
            " TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys',"
            " 'information_schema', 'performance_schema', 'tidb_binlog', 'sluice_recycle')"
        )
        return {f"{schema}.{name}": int(rows or 0) for schema, name, rows in cursor.fetchall()}


def _until(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise StackError(what)
    time.sleep(0.2)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    traffic = parser.add_mutually_exclusive_group()
    traffic.add_argument("--recording", type=Path)
    traffic.add_argument("--live", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as made:
        recording = given.recording.absolute() if given.recording else None
        if recording is None and not given.live:
            recording = Path(made, "invented")
            transactions = int(given.minutes * 60 * _INVENTED_PER_S)
            invent(recording, transactions, int(_DDL_S * _INVENTED_PER_S), given.seed)
        done = watch(given.home or Path(made, "stack"), given.minutes, recording)
    print(json.dumps(asdict(done) | {"load_1m": os.getloadavg()[0]}, indent=1, default=str))
    return 1 if done.false_alarms or done.found_s is None else 0


if __name__ == "__main__":
    sys.exit(main())
