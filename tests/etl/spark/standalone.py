"""A standalone Spark cluster for tests: a master, workers that see neither the driver's files nor Sluice, and a Spark
Connect server.

Each worker is in a mount namespace of its own, in which folders of the driver are empty. Where the environment gives
nobody one, they are told apart by their folders alone (`is_apart` is False then).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embedded.launch.part import LOOPBACK, base_environment
from embedded.launch.spark import java_home
from etl.spark.package import PACKAGES
from etl.spark.start import Command, ConnectServer, Listening, Room, master, worker

ROOT = Path(__file__).resolve().parents[3]
_NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
_PATIENCE_S = 240.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def namespace() -> list[str] | None:
    """What gives a command its own mounts; None where nobody may."""
    for words in _NAMESPACES:
        tried = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
        if tried.returncode == 0:
            return words
    return None


class Cluster:
    """`hidden`: folders that no worker sees. `environment`: what workers get, credentials of a store among it."""

    def __init__(self, home: Path, hidden: Sequence[Path], environment: Mapping[str, str]) -> None:
        self.home = home
        self._hidden = [*hidden, *(ROOT / name for name in PACKAGES)]
        self._environment = environment
        self._port, self._page = free_port(), free_port()
        self._namespace = namespace()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        port = free_port()
        self.remote = f"sc://{LOOPBACK}:{port}"
        small = {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
        }
        self._connect = ConnectServer(Listening(LOOPBACK, port), self.master_url, small, sys.executable)

    @property
    def master_url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def is_apart(self) -> bool:
        """Whether workers have mounts of their own."""
        return self._namespace is not None

    def start(self, workers: int) -> None:
        """All of it, with so many workers of one core."""
        (self.home / "recovery").mkdir()
        self.start_master()
        for number in range(workers):
            self.start_worker(number)
        self._start("connect", self._connect.command())
        wait_for(lambda: self.executors() == workers, "every worker has an executor")

    def start_master(self) -> None:
        self._start("master", master(Listening(LOOPBACK, self._port, self._page), self.home / "recovery"))

    def start_worker(self, number: int) -> None:
        """In a folder that is its own."""
        folder = self.home / f"worker-{number}"
        folder.mkdir(exist_ok=True)
        room = Room(1, "600m", folder)
        command = worker(Listening(LOOPBACK, free_port(), free_port()), self.master_url, room)
        env = dict(command.env) | dict(self._environment) | {"TMPDIR": str(folder)}
        self._start(f"worker-{number}", Command(self._apart(command.argv, folder), env))

    def _apart(self, argv: Sequence[str], folder: Path) -> tuple[str, ...]:
        if self._namespace is None:
            return tuple(argv)
        steps = [f"mount -t tmpfs none {shlex.quote(str(path))}" for path in self._hidden]
        steps += [f"mkdir -p {shlex.quote(str(folder))}", f"cd {shlex.quote(str(folder))}", f"exec {shlex.join(argv)}"]
        return (*self._namespace, "/bin/bash", "-c", " && ".join(steps))

    def _start(self, name: str, command: Command) -> None:
        env = base_environment()
        del env["PYTHONPATH"]
        env |= {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": LOOPBACK, **command.env}
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command.argv, env=env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """kill -9, with all that it has started."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def executors(self) -> int:
        """How many the master knows that run for the Connect server; 0 while it doesn't answer."""
        assert all(process.poll() is None for process in self._processes.values()), self.logs()
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=10) as answer:
                told: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return 0
        if not any(app["state"] == "RUNNING" for app in told["activeapps"]):
            return 0
        return sum(one["coresused"] for one in told["workers"] if one["state"] == "ALIVE")

    def logs(self) -> str:
        """The end of each."""
        return "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in self.home.glob("*.log"))

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)
