"""The state of a stack between two commands: ``state.json`` in its folder, and its lock.

The lock is held around changing it.

Layout of the state folder::

    state.json        ports, the recording, every part that was started (no secrets)
    lock              held while parts are started or stopped
    sluice.toml       the pipeline's settings
    logs/<part>.log   what the part printed
    <part>/           the part's data
    relay/            the relay log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluice.devstack.processes import ProcessId
from sluice.errors import RequestError

_FORMAT = 1
_PORT_RANGE = range(
    21_000,
    32_000,
    # below the kernel's range for outgoing connections, which could take a port while its part is
    # down
)


class StackError(RequestError, RuntimeError):
    """Something about the stack failed; the text is which part, why, and what can be done."""

    hint = "`sluice status` shows what runs; `sluice up` starts what doesn't"


@dataclass(frozen=True, slots=True)
class StartedService:
    """A part that was started: enough to find it, to reach it and to read its output."""

    process: ProcessId
    host: str
    ports: dict[str, int]
    argv: list[str]
    env: dict[str, str]
    log: str
    started_ms: int
    """Unix time in ms."""


@dataclass(slots=True)
class StackState:
    """The contents of ``state.json``."""

    ports: dict[str, int] = field(default_factory=dict)
    recording: str = ""
    runner: ProcessId | None = None
    """The ``sluice run`` that owns the stack and stops it when done.

    None for a stack that was started to stay.
    """
    parts: dict[str, StartedService] = field(default_factory=dict)


def load_state(state_dir: Path) -> StackState:
    """Read ``state.json``; an empty State if there is none.

    Raises StackError if it can't be understood.
    """
    path = state_dir / "state.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return StackState()
    except (OSError, ValueError) as error:
        raise StackError(
            f"{path} can't be read ({error}); run `make clean` to begin with an empty state folder"
        ) from None
    if raw.get("format") != _FORMAT:
        raise StackError(
            f"{path} has format {raw.get('format')!r}, this version knows {_FORMAT}; run `make"
            " clean`"
        )
    runner = raw["runner"]
    return StackState(
        ports=raw["ports"],
        recording=raw["recording"],
        runner=ProcessId(**runner) if runner else None,
        parts={
            name: StartedService(**{**part, "process": ProcessId(**part["process"])})
            for name, part in raw["parts"].items()
        },
    )


def save_state(state_dir: Path, state: StackState) -> None:
    """Replace ``state.json`` in one step: a reader sees the old or the new one, never a half."""
    path = state_dir / "state.json"
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({"format": _FORMAT, **asdict(state)}, indent=1), encoding="utf-8")
    draft.replace(path)


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state folder's lock. Raises StackError if another command holds it."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another sluice command is starting or stopping the stack in {state_dir}; try"
                " again when it is done"
            ) from None
        yield


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_ports(names: list[str], taken: dict[str, int]) -> dict[str, int]:
    """Return a free loopback port for every name in `names`, those in `taken` kept as they are.

    Raises StackError.
    """
    chosen = {name: taken[name] for name in names if name in taken}
    candidates = random.sample(_PORT_RANGE, k=2_000)
    for name in names:
        while name not in chosen:
            if not candidates:
                raise StackError("no free loopback port found between 21000 and 31999")
            port = candidates.pop()
            if port not in chosen.values() and port_is_free(port):
                chosen[name] = port
    return chosen
