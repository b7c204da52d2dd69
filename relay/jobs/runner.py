"""The process that runs a job, and whether it has certainly ended."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sluice.relay.json_codec import JsonDocument

__all__ = ["Runner"]


@cache
def _boot_id() -> str:
    """Return an id of this machine's start, or of this container's.

    No other machine has it, nor this one after its next start.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(6)


def _start_ticks(pid: int) -> str:
    """Return when a process began, in the kernel's ticks since the machine did.

    "" if there is no such process, or it can't be read.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    name_ends = stat.rindex(")")
    fields = stat[name_ends + 2 :].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


@dataclass(frozen=True, slots=True)
class Runner(JsonDocument):
    """A process that runs a job.

    `what` it is, for people. Processes with the same `group`, which isn't "", run a job together.
    `machine`, `pid` and `started` identify the process.
    """

    what: str
    group: str = ""
    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=_boot_id)
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: _start_ticks(os.getpid()))
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid} on {self.host})"

    def has_certainly_ended(self) -> bool:
        """Return whether the process has ended for certain, which only its own machine can know."""
        return (
            bool(self.started)
            and self.machine == _boot_id()
            and _start_ticks(self.pid) != self.started
        )

    def is_same_group(self, other: Runner) -> bool:
        """Return whether both run a job together."""
        return bool(self.group) and self.group == other.group
