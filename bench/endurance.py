"""Check in hours of steady traffic with DDL and kills that rate, lag, memory and files hold.

    python -m sluice.bench.endurance [--hours 2] [--rate 500] [--kill-every 60]
        [--ddl-every 60] [--mode atomic] [--seed 1] [--home FOLDER] [--picture FILE.svg]

The whole stack with Airflow and live traffic: every so often a column is added to one of many
tables, and something is killed with -9 (`sluice.bench.soak.VICTIMS`) and started again as a
supervisor would. Windows and archive are kept for an hour, the least there is, binlogs for twenty
minutes, so in the second hour as much goes as comes. Every ten seconds: transactions that became
visible downstream and how late, memory of each kind of process, files and bytes of each store. In
the end both sides are compared row by row, and every transaction's own row must be there once.
Keeps one JSON document like all benchmarks, and draws the picture. The exit code is 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil

from sluice.bench import charts, results, soak
from sluice.bench.endurance_watch import (
    COMES_S,
    DATABASE,
    TABLES,
    Arrivals,
    Commits,
    Course,
    Disturbance,
    Endured,
    Sample,
)
from sluice.bench.processes import replicating
from sluice.devstack import Stack
from sluice.devstack.control import AirflowClient, ClusterControl
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline
from sluice.devstack.launch import PUMP_NAMES, connect
from sluice.devstack.launch.pump import GC_VARIABLE
from sluice.devstack.progress_view import Observer, ProgressView
from sluice.devstack.repository import default_home
from sluice.devstack.state import StackError
from sluice.devstack.verification import verify
from sluice.tidb import tso

TRAFFIC = {
    "transactions": None,
    "rows": 4,
    "tables": TABLES,
    "updates": 0.5,
    "deletes": 0.24,
    "database": DATABASE,
}
_SETTINGS = 'keep = "1h"\n\n[archive]\nkeep = "1h"\n\n[apply]\nmode = "{mode}"\n'
_PUMPS_KEEP = "20m"
_EVERY_S = 10.0
_MIB = 1 << 20


def endure(home: Path, done: Endured, report: Callable[[str], None]) -> None:
    """Run it in a stack of its own, and note it in `done` as it goes.

    Raises StackError where something doesn't come back.
    """
    course = done.course
    os.environ[GC_VARIABLE] = _PUMPS_KEEP
    stack = Stack(home, settings=_SETTINGS.format(mode=course.mode))
    with fresh_stack(stack, None, report):
        site = stack.site()
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
        control = ClusterControl(site.ports["cluster-control"])
        control.workload(TRAFFIC | {"rate": course.rate, "seed": course.seed})
        arrivals, commits = Arrivals(site), Commits(control)
        arrivals.start()
        try:
            _wait_first(arrivals, commits)
            with Disturbance(stack, control, done, report) as disturbance:
                for sample in _samples(stack, arrivals, commits):
                    done.samples.append(sample)
                    done.seconds = sample.at_s
                    _say(report, done, sample)
                    if disturbance.failure is not None:
                        raise disturbance.failure
                    if sample.at_s >= course.hours * 3600:
                        break
            control.stop()
            _wait_applied(stack, control)
        finally:
            arrivals.stop()
        commits.read(settled_ms=0)
        done.transactions = commits.count
        _judge(stack, done, report)


def _wait_first(arrivals: Arrivals, commits: Commits) -> None:
    deadline = time.monotonic() + COMES_S
    while not commits.lags(arrivals.taken()):
        if time.monotonic() > deadline:
            raise StackError(f"no transaction arrived downstream within {COMES_S:.0f} s")
        time.sleep(1)


def _samples(stack: Stack, arrivals: Arrivals, commits: Commits) -> Iterator[Sample]:
    began = before = time.monotonic()
    used = _used(stack)
    while True:
        time.sleep(max(0.0, before + _EVERY_S - time.monotonic()))
        now = time.monotonic()
        came = arrivals.taken()
        lags = commits.lags(came)
        p50, p95, most = (
            round(lags[int((len(lags) - 1) * part)], 1) if lags else None for part in (0.5, 0.95, 1)
        )
        sample = Sample(
            round(now - began, 1),
            round(len(came) / (now - before), 1),
            p50,
            p95,
            most,
            _memory(stack),
        )
        used_before, used = used, _used(stack)
        sample.cpu = _cpu(used_before, used, now - before)
        for name, folder in _stores(stack).items():
            sample.files[name], sample.mib[name] = _size(folder)
        before = now
        yield sample


def _memory(stack: Stack) -> dict[str, float]:
    """Return MiB of each kind of process; {} while one of them is being killed."""
    try:
        return {
            name: round(sum(each.memory_info().rss for each in found) / _MIB, 1)
            for name, found in replicating(stack).items()
        }
    except (psutil.Error, KeyError):
        return {}


def _used(stack: Stack) -> dict[str, dict[psutil.Process, float]]:
    """Return the seconds of CPU time of each process so far, by its kind.

    {} while one of them is being killed.
    """
    try:
        return {
            name: {each: sum(each.cpu_times()[:2]) for each in found}
            for name, found in replicating(stack).items()
        }
    except (psutil.Error, KeyError):
        return {}


def _cpu(
    before: dict[str, dict[psutil.Process, float]],
    now: dict[str, dict[psutil.Process, float]],
    seconds: float,
) -> dict[str, float]:
    """Return per cent of a core by kind, without processes that ended; {} if a sample is."""
    if not before:
        return {}
    return {
        name: round(
            100 * sum(used - before[name].get(each, 0.0) for each, used in found.items()) / seconds,
            1,
        )
        for name, found in now.items()
    }


def _stores(stack: Stack) -> dict[str, list[Path]]:
    relay = stack.home / "relay"
    return {
        "pumps": [stack.site().data(name) for name in PUMP_NAMES],
        "relay log": (
            [each for each in relay.iterdir() if each.name != "archive"] if relay.is_dir() else []
        ),
        "archive": [relay / "archive"],
        "logs": [stack.home / "logs", stack.home / "airflow"],
    }


def _size(folders: list[Path]) -> tuple[int, float]:
    """Return files and MiB in these folders; files that are removed then don't count."""
    files = size = 0
    for folder in folders:
        for path, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(path, name)).st_size
                    files += 1
    return files, round(size / _MIB, 1)


def _say(report: Callable[[str], None], done: Endured, sample: Sample) -> None:
    if len(done.samples) % 6 == 0:
        report(
            f"{sample.at_s / 60:.0f} min: {sample.rate:.0f} transactions/s, lag p50 {sample.p50_ms}"
            f" max {sample.max_ms} ms, {sum(sample.memory.values()):.0f} MiB,"
            f" {sum(sample.files.values())} files, {len(done.killed)} kills, {done.ddls} DDL"
        )


def _wait_applied(stack: Stack, control: ClusterControl) -> None:
    """Wait until what was committed is downstream; raise StackError if that isn't in time."""
    newest = control.status()["newest_commit_ts"]
    view = ProgressView(stack.site())
    deadline = time.monotonic() + COMES_S
    try:
        while (view.checkpoint.read() or 0) < newest:
            soak.revive(stack)
            if time.monotonic() > deadline:
                raise StackError(
                    f"the downstream isn't through commit_ts {newest} ({tso.text(newest)})"
                )
            time.sleep(1)
    finally:
        view.close()


def _judge(stack: Stack, done: Endured, report: Callable[[str], None]) -> None:
    """Compare both sides row by row, by `sluice verify`'s job.

    And by numbers that no part of Sluice gives.
    """
    site = stack.site()
    with contextlib.closing(connect(site)) as database, database.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*), MIN(id), MAX(id) FROM {DATABASE}.txn")
        found = cursor.fetchone()
    wanted = (done.transactions, 1, done.transactions)
    if found != wanted:
        done.wrong.append(
            f"rows, first and last transaction downstream are {found}, committed were {wanted}"
        )
    compared = verify(site, Observer(report, lambda *_: None, lambda *_: None))
    done.compared = (
        f"{len(compared.tables)} tables, {compared.rows:,} rows, {compared.differences} differences"
    )
    if not compared.equal:
        done.wrong.append(f"{done.compared}; job {compared.job}")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--ddl-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--mode", choices=("atomic", "parallel"), default="atomic")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path, default=default_home() / "bench")
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the command."""
    given = _parsed()
    course = Course(
        given.hours, given.rate, given.kill_every, given.ddl_every, given.mode, given.seed
    )
    done = Endured(course)
    try:
        endure(given.home, done, lambda line: print(time.strftime("%H:%M:%S"), line, flush=True))
    finally:
        path = results.keep(given.home / "results", results.document("endurance", asdict(done)))
        print(f"kept as {path}; {done.compared or 'it did not come to its end'}")
        if given.picture and done.samples:
            given.picture.write_text(charts.endurance(asdict(done)), encoding="utf-8")
    for line in done.wrong:
        print(f"wrong: {line}")
    return 1 if done.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
