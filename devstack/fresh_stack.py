"""Have a stack on empty data while something runs, and wait until its pipeline works."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.devstack import replay
from sluice.devstack.control import AirflowClient
from sluice.devstack.launch import PUMP_NAMES, reset_runs
from sluice.devstack.processes import is_alive
from sluice.devstack.stack import Report, Stack
from sluice.devstack.state import StackError
from sluice.relay import Control, RelayLog

_PIPELINE_START_TIMEOUT_S = 120.0


@contextlib.contextmanager
def fresh_stack(
    stack: Stack, recording: Path | None, report: Report, orders: Control | None = None
) -> Iterator[None]:
    """Start the stack on empty data, and stop it when the block ends.

    Everything is stopped afterwards, whatever happens. Without a `recording` it is for live
    traffic. `orders`: what operators have asked of the tasks when they begin.

    Raises StackError if a stack that was started to stay, or another run, is up in the same
    folder.
    """
    state = stack.state()
    if state.runner and is_alive(state.runner) and state.runner.pid != os.getpid():
        raise StackError(
            f"`sluice run` is running already in {stack.home} (process {state.runner.pid})"
        )
    if stack.running():
        if state.runner is None:
            raise StackError(
                f"a stack is up in {stack.home}: stop it with `sluice down` first, or replay into"
                " it with `sluice replay`"
            )
        report("an earlier run was killed and left its processes behind: stopping them")
    stack.down()
    stack.wipe("etcd", "cluster", *PUMP_NAMES, "mariadb", "spark", "relay", "logs")
    reset_runs(stack.home)
    try:
        stack.claim()
        if orders is not None:
            relay_of(stack).change_control(lambda _: orders)
        stack.up(recording=recording, report=report, live=recording is None)
        yield
    finally:
        stack.down()


def relay_of(stack: Stack) -> RelayLog:
    """Open the relay log of a stack's pipeline."""
    return RelayLog.open((stack.home / "relay").as_uri())


def wait_pipeline(stack: Stack, airflow: AirflowClient) -> None:
    """Wait until both tasks of the DAG run.

    Raises StackError, with what Airflow reports, if they don't in time.
    """
    deadline = time.monotonic() + _PIPELINE_START_TIMEOUT_S
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
        f"the tasks of the DAG replicate didn't start within {_PIPELINE_START_TIMEOUT_S:.0f} s"
        f" (states: {states}). {errors or replay.hint(stack)}"
    )


def wait_landing(relay: RelayLog) -> None:
    """Wait until landing has begun: its first window is empty and shows where.

    Goes on without after a while.
    """
    deadline = time.monotonic() + _PIPELINE_START_TIMEOUT_S
    while relay.first() is None and time.monotonic() < deadline:
        time.sleep(0.1)
