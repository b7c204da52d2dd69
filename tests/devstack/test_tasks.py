"""Which processes are taken for those of tasks: real ones, in place of the scheduler, its workers
and their tasks.
"""

import os
import signal
import subprocess
import time

import psutil
import pytest

from sluice.devstack.processes import ProcessId
from sluice.devstack.replay import task_processes
from sluice.devstack.stack import Stack
from sluice.devstack.state import StackState, StartedService, save_state

TASK = "sh -c 'sleep 301; :'"
"""A task that has a process of its own."""
WORKER = f'sh -c "{TASK} & {TASK} & wait"'


@pytest.fixture
def stack(tmp_path):
    scheduler = subprocess.Popen(
        ["sh", "-c", f"{WORKER} & {WORKER} & wait"], start_new_session=True
    )
    started = StartedService(ProcessId(scheduler.pid, 1), "127.0.0.1", {}, [], {}, "", 0)
    save_state(tmp_path, StackState(parts={"airflow-scheduler": started}))
    family = psutil.Process(scheduler.pid)
    deadline = time.monotonic() + 60
    while sum(process.name() == "sleep" for process in family.children(recursive=True)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield Stack(tmp_path)
    os.killpg(scheduler.pid, signal.SIGKILL)
    scheduler.wait()


def test_tasks_are_the_children_of_workers_not_what_they_start_themselves(stack):
    [first, *others] = task_processes(stack)
    assert len(others) == 3
    assert {process.cmdline()[-1] for process in (first, *others)} == {"sleep 301; :"}
    assert len({process.ppid() for process in (first, *others)}) == 2


def test_a_task_that_ends_while_it_is_looked_at_hides_no_other(stack, monkeypatch):
    ending, *others = task_processes(stack)
    status = psutil.Process.status

    def just_too_late(process):
        if process == ending:
            process.kill()
            deadline = time.monotonic() + 60
            while psutil.pid_exists(process.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return status(process)

    monkeypatch.setattr(psutil.Process, "status", just_too_late)
    assert set(task_processes(stack)) == set(others)
