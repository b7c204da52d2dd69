"""Children are found and ended, whatever they do to get away."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.devstack.processes import (
    PART_MARK,
    STATE_MARK,
    ProcessId,
    environment_of,
    is_alive,
    spawn,
    start_ticks,
    tagged,
    terminate,
)


def marked_env(tmp_path, part):
    return {**os.environ, STATE_MARK: str(tmp_path), PART_MARK: part}


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """Start Python code as a marked child; what is left is killed at the end of the test."""

    def start_code(code, part="part"):
        return spawn(
            [sys.executable, "-c", code], marked_env(tmp_path, part), tmp_path, tmp_path / "log"
        )

    yield start_code
    for pid in tagged(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_terminate_ends_a_child_that_ignores_sigterm(start, tmp_path):
    child, process = start(
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on',"
        " flush=True); time.sleep(60)"
    )
    wait_for(lambda: b"on" in (tmp_path / "log").read_bytes())
    killed = terminate([process], 0.3, lambda: tagged(tmp_path))
    assert killed >= 1
    assert child.wait(60) == -signal.SIGKILL
    assert not is_alive(process)


def test_terminate_gives_a_child_time_to_end_by_itself(start, tmp_path):
    code = (
        "import signal,sys,time\n"
        "def end(*_):\n    time.sleep(0.3); print('ended', flush=True); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('on', flush=True); time.sleep(60)"
    )
    _, process = start(code)
    wait_for(lambda: b"on" in (tmp_path / "log").read_bytes())
    assert terminate([process], 60, lambda: tagged(tmp_path)) == 0
    assert b"ended" in (tmp_path / "log").read_bytes()


def test_terminate_finds_a_daemon_that_left_its_parent_and_session(start, tmp_path):
    daemon = "import time; time.sleep(60)"
    child, process = start(
        f"import subprocess,sys; print(subprocess.Popen([sys.executable, '-c', {daemon!r}],"
        " start_new_session=True).pid, flush=True)"
    )
    child.wait(60)
    pid = int((tmp_path / "log").read_text())
    assert start_ticks(pid) is not None
    assert tagged(tmp_path) == [pid]
    terminate([process], 0, lambda: tagged(tmp_path))
    wait_for(lambda: start_ticks(pid) is None)


def test_marked_tells_parts_and_state_folders_apart(start, tmp_path):
    _, one = start("import time; time.sleep(60)", "one")
    _, two = start("import time; time.sleep(60)", "two")
    wait_for(lambda: sorted(tagged(tmp_path)) == sorted([one.pid, two.pid]))
    assert tagged(tmp_path, "one") == [one.pid]
    assert tagged(tmp_path / "other") == []


def test_the_environment_of_a_process_is_read_whose_program_is_still_being_loaded(start, tmp_path):
    for _ in range(3 * (os.cpu_count() or 1)):
        # so that loading takes longer: nearly half of them had none at the first look
        start("while True: pass")
    for _ in range(50):
        child = subprocess.Popen(
            ["sleep", "60"], env={"PATH": os.environ["PATH"], STATE_MARK: "here"}
        )
        try:
            assert f"{STATE_MARK}=here".encode() in environment_of(child.pid, time.monotonic() + 60)
        finally:
            child.kill()
            child.wait()


def test_no_environment_is_waited_for_of_a_process_that_has_none():
    with subprocess.Popen(["sleep", "60"], executable="/bin/sleep", env={}) as child:
        try:
            wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
            assert environment_of(child.pid, time.monotonic() + 3600) == b""
        finally:
            child.kill()


def test_a_zombie_counts_as_dead():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    process = ProcessId(child.pid, start_ticks(child.pid) or 0)
    wait_for(lambda: not is_alive(process))  # it was not waited for: it is a zombie now
    assert child.wait(60) == 0


def test_a_pid_that_belongs_to_somebody_else_now_is_not_taken_for_ours():
    ours = ProcessId(os.getpid(), start_ticks(os.getpid()))
    assert is_alive(ours)
    assert not is_alive(ProcessId(ours.pid, ours.started - 1))
