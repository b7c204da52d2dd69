"""Child processes that outlive their starter: start, recognize and end them.

They are ended with all that they started.

A process is known by its pid and its start time (clock ticks since boot, field 22 of
``/proc/PID/stat``), so a pid that was given to another process meanwhile is never mistaken for
ours. Every child carries ``SLUICE_STATE`` and ``SLUICE_PART`` in its environment and passes them
on: what is left of a part, or of a whole stack, can be found by them even when its parent is long
gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

STATE_MARK = "SLUICE_STATE"
PART_MARK = "SLUICE_PART"
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, safe against a pid that is used again."""

    pid: int
    started: int
    """Clock ticks since boot; 0 when the process was gone before it could be read."""


def start_ticks(pid: int) -> int | None:
    """Return the start time of `pid` in clock ticks since boot.

    None if there is no such process or it is a zombie.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def _has_no_environment(pid: int) -> bool:
    """Return whether there is no environment to wait for.

    In the middle of exec there is: the new one can't be read until the program is loaded, which
    takes milliseconds on a busy machine.
    """
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX" or int(fields[6]) & _KERNEL_THREAD:
        return True
    start, end = int(fields[47]), int(fields[48])
    return start == end != 0  # 0 until it is there


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the third on (proc_pid_stat(5)).

    None if there is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def is_alive(process: ProcessId) -> bool:
    """Return whether it is that very process and it runs.

    A zombie counts as dead: not every PID 1 reaps.
    """
    return start_ticks(process.pid) == process.started


def spawn(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
) -> tuple[subprocess.Popen[bytes], ProcessId]:
    """Start a child in a session of its own; its output is appended to `log`.

    Raises OSError if it can't be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return child, ProcessId(child.pid, start_ticks(child.pid) or 0)


def tagged(state_dir: Path, part: str | None = None) -> list[int]:
    """Return the pids of all processes that carry the marks of this state folder (and of `part`).

    This process and its parents are left out.
    """
    wanted = {f"{STATE_MARK}={state_dir}".encode()}
    if part is not None:
        wanted.add(f"{PART_MARK}={part}".encode())
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    deadline = time.monotonic() + 1
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        environment = environment_of(int(entry.name), deadline)
        if wanted <= set(environment.split(b"\0")) and start_ticks(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


def environment_of(pid: int, deadline: float) -> bytes:
    """Return the environment of `pid`, waited for until `deadline` (monotonic) while it starts.

    b"" if it can't be read.
    """
    path = Path(f"/proc/{pid}/environ")
    try:
        while (
            not (environment := path.read_bytes())
            and not _has_no_environment(pid)
            and time.monotonic() < deadline
        ):
            time.sleep(0.002)
    except OSError:
        return b""
    return environment


def is_worker_process(pid: int) -> bool:
    """Return whether the process is a worker of the DAG `replicate`, which outlives tasks."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [
            b"-m",
            b"sluice.etl.tasks.worker",
        ]
    except OSError:
        return False


def descendants(roots: Iterable[ProcessId]) -> list[psutil.Process]:
    """Return the living processes among `roots` and everything they started.

    As far as the parent links still show it.
    """
    found: dict[int, psutil.Process] = {}
    for root in roots:
        if not is_alive(root):
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(root.pid)
            for member in (process, *process.children(recursive=True)):
                found[member.pid] = member
    return list(found.values())


def terminate(
    roots: Iterable[ProcessId], grace_s: float, leftovers: Callable[[], Iterable[int]]
) -> int:
    """End `roots` and everything below them: SIGTERM, after `grace_s` SIGKILL.

    Then kill what `leftovers` finds.

    SIGTERM goes to the roots only, since they know how to end their own children. Returns how many
    processes had to be killed with SIGKILL.
    """
    roots = [root for root in roots if is_alive(root)]
    members = descendants(roots)
    for root in roots:
        with contextlib.suppress(ProcessLookupError):
            os.kill(root.pid, signal.SIGTERM)
    _wait_gone(roots, grace_s)
    killed = sum(_kill(member) for member in members)
    deadline = time.monotonic() + 5
    while (rest := list(leftovers())) and time.monotonic() < deadline:
        for pid in rest:
            with contextlib.suppress(psutil.Error):
                killed += _kill(psutil.Process(pid))
        time.sleep(0.02)
    return killed


def _wait_gone(roots: Sequence[ProcessId], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(is_alive(root) for root in roots) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill(process: psutil.Process) -> bool:
    try:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.Error:
        return False
    return True
