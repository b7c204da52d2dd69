"""Replay a recording through a running stack.

It begins with a fresh upstream and downstream, and ends when all of it is applied.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.devstack import processes
from sluice.devstack.control import AirflowClient, ClusterControl, Unreachable, clear_registry
from sluice.devstack.launch import PART_NAMES, PUMP_NAMES, drop_everything
from sluice.devstack.progress_view import ProgressView, ReplicationProgress
from sluice.devstack.recording import Recording
from sluice.devstack.stack import Report, Stack
from sluice.devstack.state import StackError
from sluice.relay import Control, RelayLog

_UPSTREAM = ("cluster", *PUMP_NAMES)
_END_TASKS_TIMEOUT_S = 120.0
"""Airflow's API server and scheduler take this long on a machine that does other work, too."""


@dataclass(frozen=True, slots=True)
class StallTimeouts:
    """The times after which a replay that stands still is warned of, and given up."""

    warn_s: float = 60
    """Time without anything landed or applied after which that is reported.

    With the reason if one can be found.
    """
    give_up_s: float = 900
    """After so long the replay is given up with an error."""


@dataclass(frozen=True, slots=True)
class ReplayGoal:
    """The checkpoint at `ts` (TSO) or beyond; with `sent`, the replay sent to its end too."""

    ts: int
    sent: bool = True


@dataclass(frozen=True, slots=True)
class ReplayObserver:
    """Callbacks while waiting.

    `on_progress` is called every `interval_s`, `report` with each line of text for people, and
    `tend` about once a second.
    """

    on_progress: Callable[[ReplicationProgress], None]
    report: Report
    tend: Callable[[], None] = lambda: None
    interval_s: float = 0.25


def clear(stack: Stack, recording: Path, report: Report, *, paused: bool = False) -> None:
    """Take a running stack back to the beginning.

    That is empty pumps, registry, relay log and downstream, and a stand-in cluster that plays
    `recording`. The pipeline is halted meanwhile; with `paused` landing and applying wait for
    `sluice resume` then. Raises StackError.
    """
    running = stack.running()
    if not running:
        raise StackError("no stack is running: start one with `sluice up`")
    # the replay restarts what is missing
    missing = [name for name in PART_NAMES if name not in running and name not in _UPSTREAM]
    if missing:
        raise StackError(
            f"the stack isn't complete, {', '.join(missing)} not running: run `sluice up` first"
        )
    site = stack.site()
    report(
        "clearing the state of earlier replays: pumps, registry, relay log, and every database"
        " downstream"
    )
    airflow = AirflowClient(stack.home, site.ports["airflow"])
    _halt_pipeline(stack, airflow)
    stack.stop(_UPSTREAM, grace_s=0)
    stack.wipe(*_UPSTREAM, "relay")
    clear_registry(site.ports["etcd-client"])
    drop_everything(site)
    stack.up(_UPSTREAM, recording=recording)
    if paused:
        relay = RelayLog.open((stack.home / "relay").as_uri())
        relay.change_control(lambda _: Control(land_paused=True, apply_paused=True))
    airflow.pause(paused=False)


def _halt_pipeline(stack: Stack, airflow: AirflowClient) -> None:
    """End the DAG's tasks; none starts until the DAG is unpaused."""
    if not airflow.is_known():
        errors = airflow.import_errors()
        raise StackError(
            "Airflow doesn't know the DAG sluice_replicate"
            + (f": {'; '.join(errors)}" if errors else " (yet): try again in a few seconds")
        )
    airflow.pause(paused=True)
    deadline = time.monotonic() + _END_TASKS_TIMEOUT_S
    while True:
        runs = airflow.active_runs()
        for run_id in runs:
            # Airflow's database is busy: the next round tries again
            with contextlib.suppress(StackError):
                airflow.end_run(run_id)
        tasks = [*task_processes(stack), *worker_processes(stack)]
        if not runs and not tasks:
            return
        if time.monotonic() > deadline:
            raise StackError(
                f"the pipeline's tasks didn't end within {_END_TASKS_TIMEOUT_S:.0f} s; `sluice"
                " down` and `sluice up` will do it"
            )
        # They would find out by themselves at their next heartbeat, seconds from now.
        for task in tasks:
            with contextlib.suppress(psutil.Error):
                task.kill()
        time.sleep(0.1)


def send(stack: Stack, until: str | int | None, speed: str, strategy: str) -> None:
    """Let the stand-in cluster send its recording through `until`.

    `until`: a label, a TSO, or None for all of it. Raises StackError.
    """
    ClusterControl(stack.site().ports["cluster-control"]).replay(until, speed, strategy)


def target(recording: Recording, until: str | int | None) -> tuple[str | int | None, int]:
    """Return the label or TSO to send, and the TSO through which it must be applied.

    It is the label or TSO `until`, else the last label, else all there is. Raises RecordingError
    if there is no such label.
    """
    if until is None and recording.labels:
        until = max(recording.labels, key=lambda label: label.ts).name
    ts = recording.resolve(until)
    if ts is None:
        ts = max(
            (transaction.commit_ts for transaction in recording.transactions().values()), default=0
        )
    return until, ts


def wait_applied(
    stack: Stack,
    view: ProgressView,
    goal: ReplayGoal,
    onlooker: ReplayObserver,
    patience: StallTimeouts = StallTimeouts(),
) -> ReplicationProgress:
    """Wait until the goal is reached.

    Returns the last Progress.

    Parts may go down and come back meanwhile. Raises StackError if the stand-in cluster failed, or
    if nothing moved for `patience.give_up_s`.
    """
    control = ClusterControl(stack.site().ports["cluster-control"])
    moved = time.monotonic()
    warned = moved
    tended = moved
    last: tuple[int, int | None, int | None] | None = None
    while True:
        progress = view.progress()
        onlooker.on_progress(progress)
        done = is_sent(control) or not goal.sent
        if done and progress.checkpoint is not None and progress.checkpoint >= goal.ts:
            return progress
        now = time.monotonic()
        position = (progress.landed, progress.checkpoint, progress.received)
        if position != last:
            last, moved, warned = position, now, now
        if now - moved > patience.give_up_s:
            raise StackError(
                f"nothing was landed or applied for {patience.give_up_s:.0f} s. {hint(stack)}"
            )
        if now - warned > patience.warn_s:
            warned = now
            onlooker.report(
                f"nothing was landed or applied for {now - moved:.0f} s, still waiting."
                f" {hint(stack)}"
            )
        if now - tended > 1:
            tended = now
            onlooker.tend()
        time.sleep(onlooker.interval_s)


def wait_sent(
    stack: Stack, view: ProgressView, on_progress: Callable[[ReplicationProgress], None]
) -> None:
    """Wait until the stand-in cluster has sent all that was requested.

    Raises StackError if it failed.
    """
    wait_committed(stack, lambda: on_progress(view.progress()))


def wait_committed(stack: Stack, tend: Callable[[], None] = lambda: None) -> None:
    """Wait for the stand-in cluster alone; `tend` is called a few times a second.

    Raises StackError if it failed.
    """
    control = ClusterControl(stack.site().ports["cluster-control"])
    while not is_sent(control):
        tend()
        if "cluster" in stack.dead():
            raise StackError(
                f"the stand-in cluster died, see {stack.home / 'logs'}: `sluice up`, then replay"
                " again"
            )
        time.sleep(0.25)


def is_sent(control: ClusterControl) -> bool:
    """Return whether the stand-in cluster has sent all that was requested.

    False while it doesn't answer. Raises StackError if it failed.
    """
    try:
        status = control.status()
    except Unreachable:
        return False
    if status["state"] == "failed":
        raise StackError(f"the stand-in cluster could not replay: {status.get('error')}")
    return bool(status["state"] == "done")


def hint(stack: Stack) -> str:
    """Return why it may stand still: parts that are down, and the last error in the task logs."""
    parts = (
        [f"Not running: {', '.join(dead)} (`sluice up` starts them again)."]
        if (dead := stack.dead())
        else []
    )
    logs = sorted(
        (stack.home / "airflow" / "logs").glob("dag_id=sluice_replicate/*/task_id=*/*.log"),
        key=lambda path: path.stat().st_mtime,
    )
    for log in reversed(logs[-4:]):
        if error := _last_error(log):
            parts.append(f"The last error in {log}: {error}")
            break
    return (
        " ".join(parts)
        or f"The logs are in {stack.home / 'logs'} and {stack.home / 'airflow' / 'logs'}."
    )


def _last_error(log: Path) -> str | None:
    """Return the last error in a task's log, which has one JSON object a line, in one line."""
    found = None
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if '"level":"error"' not in line:
            continue
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            causes = [
                f"{cause.get('exc_type')}: {cause.get('exc_value')}"
                for cause in entry.get("error_detail") or []
            ]
            found = " ".join(f"{entry.get('event')}: {causes[0] if causes else ''}".split())[:600]
    return found


def task_processes(stack: Stack) -> list[psutil.Process]:
    """Return the processes of Airflow's tasks.

    They are children of the LocalExecutor's workers, which are the scheduler's children.
    """
    started = stack.state().parts.get("airflow-scheduler")
    if started is None:
        return []
    scheduler = started.process.pid
    parents: dict[psutil.Process, int] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(scheduler).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if process.status() != psutil.STATUS_ZOMBIE:
                    parents[process] = process.ppid()
    workers = {process.pid for process, parent in parents.items() if parent == scheduler}
    return [process for process, parent in parents.items() if parent in workers]


def worker_processes(stack: Stack) -> list[psutil.Process]:
    """Return the processes that land and apply for the tasks of the DAG `replicate`.

    They outlast the tasks (`sluice.etl.tasks.worker`).
    """
    found = []
    for pid in filter(processes.is_worker_process, processes.tagged(stack.home)):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found
