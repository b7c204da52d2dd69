"""The whole on one machine: start everything, replay a recording, compare at every snapshot, stop everything."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from embedded import replay
from embedded.compare import compare
from embedded.control import AirflowClient, ClusterControl
from embedded.launch import connect, reset_runs
from embedded.processes import is_alive
from embedded.recording import Label, Recording
from embedded.stack import Report, Stack
from embedded.state import StackError
from embedded.view import CheckpointTrace, Progress, View

_MAX_RESTARTS = 20
_PIPELINE_START_S = 120.0


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts are those of the replay through the last snapshot."""

    recording: str
    transactions: int = 0
    changes: int = 0
    ddls: int = 0
    windows: int = 0
    rows_per_s: float = 0.0
    """Row changes, by the time from the first commit in the stand-in cluster to the last checkpoint."""
    lag_p50_ms: float = 0.0
    """Commit in the stand-in cluster until the downstream's checkpoint was seen at or above it."""
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
def fresh_stack(stack: Stack, recording: Path, report: Report) -> Iterator[None]:
    """The stack, started on empty data, while the block runs; everything is stopped afterwards, whatever happens.

    Raises StackError if a stack that somebody started to stay, or another run, is up in the same folder.
    """
    state = stack.state()
    if state.runner and is_alive(state.runner) and state.runner.pid != os.getpid():
        raise StackError(f"`sluice run` is running already in {stack.home} (process {state.runner.pid})")
    if stack.running():
        if state.runner is None:
            raise StackError(f"a stack is up in {stack.home}: stop it with `sluice down` first, or replay into it with `sluice replay`")
        report("an earlier run was killed and left its processes behind: stopping them")
    stack.down()
    stack.wipe("etcd", "cluster", "pump-1", "pump-2", "mariadb", "spark", "relay", "logs")
    reset_runs(stack.home)
    try:
        stack.claim()
        stack.up(recording=recording, report=report)
        yield
    finally:
        stack.down()


def run(stack: Stack, directory: Path, report: Report, show: Show) -> RunSummary:
    """Replay the recording in `directory` once to each of its snapshots and compare the downstream there.

    `report` gets lines of text, `show` the progress several times a second. Parts that die are started again. Raises
    StackError or RecordingError; the stack is down when this returns or raises.
    """
    recording = Recording(directory)
    if not recording.labels:
        raise StackError(f"{directory} has no snapshots to compare with")
    summary = RunSummary(recording=recording.name)
    began = time.monotonic()
    with fresh_stack(stack, directory, report):
        site = stack.site()
        airflow = AirflowClient(stack.home, site.ports["airflow"])
        wait_pipeline(stack, airflow)
        summary.start_s = time.monotonic() - began
        report(f"the DAG replicate runs, {summary.start_s:.0f} s after the start; replaying {directory}")
        for label in sorted(recording.labels, key=lambda label: label.ts):
            _advance(stack, directory, label, report, show, summary)
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
        f"the tasks of the DAG replicate didn't start within {_PIPELINE_START_S:.0f} s (states: {states}). {errors or replay.hint(stack)}"
    )


def _advance(stack: Stack, directory: Path, label: Label, report: Report, show: Show, summary: RunSummary) -> None:
    """Replay through `label`, from the beginning each time, since a cluster's time can't go back; wait until it is
    applied, compare."""
    site = stack.site()
    control = ClusterControl(site.ports["cluster-control"])
    if control.status()["state"] != "idle":
        replay.clear(stack, directory, lambda line: None)
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
    view = View(site)
    trace = CheckpointTrace(site.ports["mariadb"])
    trace.start()
    try:
        replay.send(stack, label.name, "max", "range")
        progress = replay.wait_applied(
            stack, view, label.ts, lambda progress: show(label, progress), report, tend=lambda: _tend(stack, report, summary)
        )
        commits = control.all_commits()
        lags = sorted(trace.lags_ms(commits))
        moves = trace.moves()
    finally:
        trace.stop()
        view.close()
    summary.transactions = progress.applied
    summary.changes = progress.changes_applied
    summary.ddls = progress.ddls_applied
    summary.windows = progress.windows_applied
    applied_ms = next((wall_ms for ts, wall_ms in moves if commits and ts >= commits[-1][0]), None)
    if applied_ms:
        summary.rows_per_s = progress.changes_applied / (max(applied_ms - commits[0][1], 1) / 1000)
    if len(lags) > 1:
        cuts = statistics.quantiles(lags, n=20)
        summary.lag_p50_ms, summary.lag_p95_ms, summary.lag_max_ms = cuts[9], cuts[18], lags[-1]
    with contextlib.closing(connect(site.ports["mariadb"])) as database:
        found = compare(directory / "snapshots" / label.name, database)
    summary.snapshots.append(label.name)
    summary.tables += found.tables
    summary.rows_compared += found.rows
    summary.differences += [f"{label.name}: {line}" for line in found.differences]
    report(f"snapshot {label.name}: {found.tables} tables, {found.rows} rows compared, {len(found.differences)} differences")


def _tend(stack: Stack, report: Report, summary: RunSummary) -> None:
    """Start again what died."""
    for name in stack.dead():
        summary.restarted.append(name)
        if len(summary.restarted) > _MAX_RESTARTS:
            raise StackError(f"parts keep dying, {name} the last: see {stack.home / 'logs'}")
        report(f"{name} died; starting it again")
        stack.up([name])
