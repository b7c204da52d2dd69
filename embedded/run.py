"""The whole on one machine: start everything, replay a recording, compare at every snapshot, stop everything."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from embedded import replay
from embedded.compare import compare
from embedded.control import AirflowClient, ClusterControl
from embedded.launch import Site, connect, reset_runs
from embedded.processes import is_alive
from embedded.recording import Label, Recording
from embedded.stack import Report, Stack
from embedded.state import StackError
from embedded.view import CheckpointTrace, Progress, View
from relay import Control, RelayLog

_MAX_RESTARTS = 20
_PIPELINE_START_S = 120.0


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts are those of the replay through the last snapshot."""

    recording: str
    speed: str = "1"
    transactions: int = 0
    changes: int = 0
    ddls: int = 0
    windows: int = 0
    rows_per_s: float = 0.0
    """Row changes, by the time from the first commit in the stand-in cluster to the last checkpoint."""
    lag_p50_ms: float = 0.0
    """Commit in the stand-in cluster until the downstream's checkpoint was seen at or above it, without the holds."""
    lag_p95_ms: float = 0.0
    lag_max_ms: float = 0.0
    snapshots: list[str] = field(default_factory=list)
    tables: int = 0
    rows_compared: int = 0
    differences: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    start_s: float = 0.0
    """Until all parts were ready and the pipeline ran."""
    total_s: float = 0.0


Show = Callable[[Label, Progress], None]


@contextlib.contextmanager
def fresh_stack(stack: Stack, recording: Path | None, report: Report) -> Iterator[None]:
    """The stack, started on empty data, while the block runs; everything is stopped afterwards, whatever happens.
    Without a `recording` it is for live traffic.

    Raises StackError if a stack that somebody started to stay, or another run, is up in the same folder.
    """
    state = stack.state()
    if state.runner and is_alive(state.runner) and state.runner.pid != os.getpid():
        raise StackError(f"`sluice run` is running already in {stack.home} (process {state.runner.pid})")
    if stack.running():
        if state.runner is None:
            raise StackError(
                f"a stack is up in {stack.home}: stop it with `sluice down` first, or replay into it with `sluice"
                " replay`"
            )
        report("an earlier run was killed and left its processes behind: stopping them")
    stack.down()
    stack.wipe("etcd", "cluster", "pump-1", "pump-2", "mariadb", "spark", "relay", "logs")
    reset_runs(stack.home)
    try:
        stack.claim()
        stack.up(recording=recording, report=report, live=recording is None)
        yield
    finally:
        stack.down()


def run(stack: Stack, directory: Path, report: Report, show: Show, speed: str = "1") -> RunSummary:
    """Replay the recording in `directory` through its last snapshot and compare the downstream at each of them.

    Applying is held at each snapshot's timestamp until the comparison is done; receiving and landing go on. `speed`: 1
    as recorded, "max" without waiting. `report` gets lines of text, `show` the progress several times a second. Parts
    that die are started again. Raises StackError or RecordingError; the stack is down when this returns or raises.
    """
    recording = Recording(directory)
    if not recording.labels:
        raise StackError(f"{directory} has no snapshots to compare with")
    labels = sorted(recording.labels, key=lambda label: label.ts)
    summary = RunSummary(recording=recording.name, speed=speed)
    began = time.monotonic()
    with fresh_stack(stack, directory, report):
        site = stack.site()
        relay = RelayLog.open((stack.home / "relay").as_uri())
        _apply_through(relay, labels)
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
        _wait_landing(relay)
        summary.start_s = time.monotonic() - began
        pace = "as fast as the pumps take it" if speed == "max" else f"at {speed} times the recorded speed"
        report(f"the DAG replicate runs, {summary.start_s:.0f} s after the start; replaying {directory} {pace}")
        view = View(site)
        trace = CheckpointTrace(site.ports["mariadb"])
        trace.start()
        holds: list[tuple[float, float]] = []
        try:
            replay.send(stack, labels[-1].name, speed, "range")
            for at, label in enumerate(labels):
                progress = replay.wait_applied(
                    stack, view, replay.Goal(label.ts, sent=label is labels[-1]),
                    replay.Onlooker(
                        functools.partial(show, label), report, lambda: _tend(stack, report, summary), interval_s=0.1
                    ),
                )  # fmt: skip
                held = time.time() * 1000
                _compare(site, directory, label, report, summary)
                _apply_through(relay, labels[at + 1 :])
                holds.append((held, time.time() * 1000))
            _sum_up(
                summary, progress, trace.moves(), _without(holds, trace, ClusterControl(site.ports["cluster-control"]))
            )
        finally:
            trace.stop()
            view.close()
    summary.total_s = time.monotonic() - began
    return summary


def wait_pipeline(stack: Stack, airflow: AirflowClient) -> None:
    """Wait until both tasks of the DAG run. Raises StackError, with what Airflow says, if they don't in time."""
    deadline = time.monotonic() + _PIPELINE_START_S
    states: dict[str, str] = {}
    while time.monotonic() < deadline:
        with contextlib.suppress(StackError):
            if airflow.is_known():
                states = airflow.tasks()
        if len(states) >= 2 and all(state == "running" for state in states.values()):
            return
        time.sleep(0.25)
    errors = "; ".join(airflow.import_errors())
    raise StackError(
        f"the tasks of the DAG replicate didn't start within {_PIPELINE_START_S:.0f} s (states: {states})."
        f" {errors or replay.hint(stack)}"
    )


def _wait_landing(relay: RelayLog) -> None:
    """Wait until landing has begun: its first window is empty and says where. Goes on without after a while."""
    deadline = time.monotonic() + _PIPELINE_START_S
    while relay.first() is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _apply_through(relay: RelayLog, labels: list[Label]) -> None:
    """Let applying go on to the first of these; the last needs no hold, since no more is sent."""
    until = labels[0].ts if len(labels) > 1 else None
    relay.change_control(lambda _: Control(apply_until_ts=until))


def _compare(site: Site, directory: Path, label: Label, report: Report, summary: RunSummary) -> None:
    with contextlib.closing(connect(site.ports["mariadb"])) as database:
        found = compare(directory / "snapshots" / label.name, database)
    summary.snapshots.append(label.name)
    summary.tables += found.tables
    summary.rows_compared += found.rows
    summary.differences += [f"{label.name}: {line}" for line in found.differences]
    report(
        f"snapshot {label.name}: {found.tables} tables, {found.rows} rows compared, {len(found.differences)}"
        " differences"
    )


def _without(holds: list[tuple[float, float]], trace: CheckpointTrace, control: ClusterControl) -> list[float]:
    """The lag of every commit in ms, without the time for which applying was held to compare."""
    lags = []
    for (_, wall_ms), lag_ms in trace.lags_ms(control.all_commits()):
        held = sum(max(0.0, min(end, wall_ms + lag_ms) - max(begin, wall_ms)) for begin, end in holds)
        lags.append(max(0.0, lag_ms - held))
    return sorted(lags)


def _sum_up(summary: RunSummary, progress: Progress, moves: list[tuple[int, int]], lags: list[float]) -> None:
    summary.transactions = progress.applied
    summary.changes = progress.changes_applied
    summary.ddls = progress.ddls_applied
    summary.windows = progress.windows_applied
    if len(moves) > 1 and moves[-1][1] > moves[0][1]:
        summary.rows_per_s = progress.changes_applied / ((moves[-1][1] - moves[0][1]) / 1000)
    if len(lags) > 1:
        cuts = statistics.quantiles(lags, n=20)
        summary.lag_p50_ms, summary.lag_p95_ms, summary.lag_max_ms = cuts[9], cuts[18], lags[-1]


def _tend(stack: Stack, report: Report, summary: RunSummary) -> None:
    """Start again what died."""
    for name in stack.dead():
        summary.restarted.append(name)
        if len(summary.restarted) > _MAX_RESTARTS:
            raise StackError(f"parts keep dying, {name} the last: see {stack.home / 'logs'}")
        report(f"{name} died; starting it again")
        stack.up([name])
