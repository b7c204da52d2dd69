"""Run the one-machine stack: all that replication needs, as child processes.

Their data is under one folder.

    stack = Stack(Path(".sluice"))
    stack.up()          # starts what isn't running and waits until it serves
    stack.down()        # ends all of it, whatever state it is in
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sluice.devstack import processes
from sluice.devstack.launch import (
    LOOPBACK,
    NO_RECORDING,
    PART_NAMES,
    PORT_NAMES,
    PUMP_NAMES,
    MissingProgram,
    StackPaths,
    build_parts,
)
from sluice.devstack.launch.pump import BEGIN_TS
from sluice.devstack.part_starter import PartStarter
from sluice.devstack.processes import ProcessId, is_alive, start_ticks
from sluice.devstack.repository import DAGS, default_home, recording_folder
from sluice.devstack.state import (
    StackError,
    StackState,
    choose_ports,
    load_state,
    locked,
    port_is_free,
    save_state,
)

DEFAULT_RECORDING = "tests/recordings/shop"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PartStatus:
    """The state of a part that is known without asking it anything."""

    name: str
    state: str
    """``running``, ``dead`` (it was started and ended by itself) or ``stopped``."""
    pid: int | None
    host: str
    ports: dict[str, int]
    log: str


class Stack:
    """The stack in one state folder.

    Ports are chosen once a folder and kept, so a part that comes back has its old address.
    """

    def __init__(self, home: Path | None = None, dags: Path = DAGS, settings: str = "") -> None:
        """Use the state folder `home`; `settings` ends the pipeline's sluice.toml.

        They are further keys of `[relay]`, then further sections.
        """
        self.home = (home or default_home()).absolute()
        self._dags = dags
        self._settings = settings
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._state_lock = threading.Lock()

    # ---- what there is -------------------------------------------------------------------------

    def state(self) -> StackState:
        """Return the contents of state.json."""
        return load_state(self.home)

    def site(self) -> StackPaths:
        """Folder, ports and recording. Raises StackError if the stack has never been started."""
        state = self.state()
        if not set(PORT_NAMES) <= set(state.ports):
            raise StackError(f"no stack has been started in {self.home}: run `sluice up`")
        return StackPaths(self.home, state.ports, Path(state.recording))

    def status(self) -> list[PartStatus]:
        """Every part and whether it runs; works with the stack down."""
        state = self.state()
        result = []
        for name in PART_NAMES:
            started = state.parts.get(name)
            if started is None:
                result.append(PartStatus(name, "stopped", None, LOOPBACK, {}, ""))
                continue
            alive = is_alive(started.process)
            result.append(
                PartStatus(
                    name,
                    "running" if alive else "dead",
                    started.process.pid if alive else None,
                    started.host,
                    started.ports,
                    started.log,
                )
            )
        return result

    def running(self) -> list[str]:
        """Names of the parts that run."""
        return [part.name for part in self.status() if part.state == "running"]

    def dead(self) -> list[str]:
        """Return the names of the parts that were started and ended without a request."""
        return [part.name for part in self.status() if part.state == "dead"]

    # ---- starting ------------------------------------------------------------------------------

    def up(
        self,
        names: Collection[str] = (),
        recording: Path | None = None,
        report: Report = lambda line: None,
        *,
        live: bool = False,
    ) -> list[str]:
        """Start the parts in `names` (all, if empty) that don't run, and wait until each serves.

        Independent parts start side by side. `recording` is what the stand-in cluster plays (kept
        if None); with `live` it plays none and is there for live traffic. Calls `report` with a
        line a part. Returns the names of the parts that were started. Raises StackError, with the
        end of the log of the part that failed; what came up stays up.
        """
        unknown = set(names) - set(PART_NAMES)
        if unknown:
            raise StackError(
                f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PART_NAMES)}"
            )
        with _private_umask(), locked(self.home):
            _close(self.home)
            state = self.state()
            alive = {name for name, part in state.parts.items() if is_alive(part.process)}
            wanted = [
                name for name in PART_NAMES if (name in names or not names) and name not in alive
            ]
            if not wanted:
                return []
            for name in wanted:
                self._remove_leftovers(name)
            state.ports = self._ports(state, alive, wanted)
            if live:
                state.recording = NO_RECORDING
            elif recording or (not state.recording and "cluster" in wanted):
                state.recording = str((recording or recording_folder(DEFAULT_RECORDING)).absolute())
            save_state(self.home, state)
            site = StackPaths(self.home, state.ports, Path(state.recording))
            self._write_settings(site)
            try:
                parts = build_parts(site, self._dags)
            except MissingProgram as error:
                raise StackError(str(error)) from None
            starter = PartStarter(self.home, self._state_lock, self._children)
            starter.start([parts[name] for name in wanted], report)
            return wanted

    def claim(self) -> None:
        """Note in state.json that this process runs the stack and stops it when done.

        `down` ends the claim.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        state = self.state()
        state.runner = ProcessId(os.getpid(), start_ticks(os.getpid()) or 0)
        save_state(self.home, state)

    def _ports(self, state: StackState, alive: set[str], wanted: list[str]) -> dict[str, int]:
        if not alive:
            taken = {name: port for name, port in state.ports.items() if port_is_free(port)}
            return choose_ports(PORT_NAMES, taken)
        for port_name in PORT_NAMES:
            owner = {
                "etcd-client": "etcd",
                "etcd-peer": "etcd",
                "cluster-control": "cluster",
                "cluster-sql": "cluster",
                "airflow": "airflow-api",
            }.get(port_name, port_name)
            if (
                owner in wanted
                and port_name in state.ports
                and not _becomes_free(state.ports[port_name])
            ):
                raise StackError(
                    f"port {state.ports[port_name]} of {owner} is used by another program; end"
                    " that, or move the whole stack to other ports: sluice down, then sluice up"
                )
        return choose_ports(PORT_NAMES, state.ports)

    def _write_settings(self, site: StackPaths) -> None:
        pd, spark = (
            f"http://{LOOPBACK}:{site.ports['cluster']}",
            f"sc://{LOOPBACK}:{site.ports['spark']}",
        )
        relay = (self.home / "relay").as_uri()
        text = (
            "# Written by `sluice up` at every start of the one-machine stack.\n"
            f'[upstream]\npd-urls = "{pd}"\ninitial-commit-ts = {BEGIN_TS}\n'
            f'sql-host = "{LOOPBACK}"\nsql-port = {site.ports["cluster-sql"]}\n\n'
            f'[spark]\nremote = "{spark}"\ntoken-file = "{site.secret("spark")}"\n\n'
            f'[downstream]\nhost = "{LOOPBACK}"\nport = {site.ports["mariadb"]}\nuser = "root"\n'
            f'password-file = "{site.secret("mariadb")}"\n\n'
            f'[relay]\nurl = "{relay}"\n{self._settings}'
        )
        site.config.write_text(text, encoding="utf-8")

    # ---- stopping ------------------------------------------------------------------------------

    def stop(self, names: Iterable[str], grace_s: float | None = None) -> None:
        """End these parts with all they started, and forget that they were started.

        `grace_s` 0 means at once.
        """
        with locked(self.home):
            self._stop(list(names), grace_s)

    def down(self, report: Report = lambda line: None) -> None:
        """End every process of this state folder, also those that a crashed command left behind."""
        if not self.home.exists():
            return
        with self._patiently_locked():
            state = self.state()
            running = [name for name, part in state.parts.items() if is_alive(part.process)]
            known = {
                member.pid
                for member in processes.descendants(part.process for part in state.parts.values())
            }
            leftovers = set(processes.tagged(self.home)) - known
            self._stop(list(PART_NAMES), None)
            processes.terminate([], 0, lambda: processes.tagged(self.home))
            if running:
                report(f"stopped {', '.join(running)}")
            if leftovers:
                report(f"ended {len(leftovers)} processes that were left behind")
            state = self.state()
            state.parts.clear()
            state.runner = None
            save_state(self.home, state)

    @contextlib.contextmanager
    def _patiently_locked(self):  # type: ignore[no-untyped-def]
        """Take the lock, waiting a while for a command that is starting or stopping parts."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with locked(self.home):
                    yield
                return
            except StackError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _stop(self, names: list[str], grace_s: float | None) -> None:
        state = self.state()
        stages: dict[int, list[str]] = {}
        grace: dict[str, float] = {}
        for name in names:
            stage, patience = _STOPPING.get(name, (0, 8.0))
            stages.setdefault(stage, []).append(name)
            grace[name] = patience if grace_s is None else grace_s
        for stage in sorted(stages):
            with ThreadPoolExecutor(len(stages[stage])) as pool:
                list(pool.map(lambda name: self._stop_one(name, state, grace[name]), stages[stage]))
        with self._state_lock:
            state = self.state()
            for name in names:
                state.parts.pop(name, None)
            save_state(self.home, state)

    def _stop_one(self, name: str, state: StackState, grace_s: float) -> None:
        started = state.parts.get(name)
        roots = [started.process] if started else []
        processes.terminate(roots, grace_s, lambda: processes.tagged(self.home, name))
        child = self._children.pop(name, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)

    def _remove_leftovers(self, name: str) -> None:
        """Remove what a part that was killed has left behind: it would hold its port or its data.

        Worker processes hold neither: the scheduler's next tasks take them up, and without one
        they end by themselves.
        """
        processes.terminate([], 0, lambda: self._left(name))
        child = self._children.pop(name, None)
        if child is not None:
            child.poll()

    def _left(self, name: str) -> list[int]:
        return [
            pid for pid in processes.tagged(self.home, name) if not processes.is_worker_process(pid)
        ]

    # ---- data ----------------------------------------------------------------------------------

    def wipe(self, *folders: str) -> None:
        """Remove data folders of the state folder (``pump-1``, ``relay``, …).

        Their parts must not be running.
        """
        for folder in folders:
            shutil.rmtree(self.home / folder, ignore_errors=True)


# Stage and patience (s) by part: first the parts that use others, then the others.
_STOPPING = {
    "airflow-api": (0, 3.0),
    "airflow-scheduler": (0, 3.0),
    "airflow-dag-processor": (0, 3.0),
    "airflow-triggerer": (0, 3.0),
    "metrics": (0, 3.0),
    "spark": (1, 5.0),
    **dict.fromkeys(PUMP_NAMES, (1, 15.0)),
    "cluster": (2, 5.0),
    "etcd": (2, 5.0),
    "mariadb": (2, 20.0),
}


@contextlib.contextmanager
def _private_umask() -> Iterator[None]:
    """Make what is begun here the owner's alone: rows lie in it.

    So are files of programs that are started.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _close(home: Path) -> None:
    """Keep other users out of the state folder.

    Root's may be passed through, as MariaDB then runs as the user "nobody".
    """
    home.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _becomes_free(port: int) -> bool:
    """Return whether the port is free within a few seconds.

    A process that was killed may still be closing its sockets.
    """
    deadline = time.monotonic() + 5
    while not port_is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
