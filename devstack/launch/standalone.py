"""A standalone Spark cluster on one machine: a master, workers of one core, a Connect server.

For benchmarks and tests; the one-machine stack itself has its workers in the server's own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.devstack.launch.service import LOOPBACK, base_environment
from sluice.devstack.launch.spark import class_archive_option, java_home
from sluice.devstack.state import StackError
from sluice.etl.spark.launch import (
    ConnectServer,
    LaunchCommand,
    ListenAddress,
    WorkerResources,
    build_master_command,
    build_worker_command,
    with_authentication,
)

_START_TIMEOUT_S = 240.0


class StandaloneCluster:
    """A standalone Spark cluster; `home`: an empty folder for all that it writes.

    `environment`: what workers get, a store's credentials too. `more`: settings of the Connect
    server's application.
    """

    def __init__(
        self, home: Path, environment: Mapping[str, str], more: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self._environment = environment
        self._secret = secrets.token_urlsafe(24)
        self._port, self._page = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        port = free_port()
        self._remote_port = port
        self.remote = f"sc://{LOOPBACK}:{port}"
        conf = {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            **(more or {}),
        }
        listening = ListenAddress(LOOPBACK, port)
        self._connect = ConnectServer(
            listening, self.master_url, conf, sys.executable, class_archive_option()
        )

    @property
    def master_url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def pids(self) -> dict[str, int]:
        """Return the pids by process.

        ``build_master_command``, ``connect``, ``worker-0`` and so on.
        """
        return {name: process.pid for name, process in self._processes.items()}

    def start(self, workers: int) -> None:
        """Start master and workers. Raises StackError if they don't come up."""
        (self.home / "recovery").mkdir(parents=True)
        self.start_master()
        for number in range(workers):
            self.start_worker(number)
        self._start("connect", self._connect.command())
        self.wait_for_executors(workers)
        self._wait_for(self._takes_connections, "Connect server")

    def start_master(self) -> None:
        """Start the master at its port, with the state of the one before."""
        self._start(
            "master",
            build_master_command(
                ListenAddress(LOOPBACK, self._port, self._page), self.home / "recovery"
            ),
        )

    def start_worker(self, number: int) -> None:
        """Start a worker in a folder that is its own."""
        folder = self.home / f"worker-{number}"
        folder.mkdir(exist_ok=True)
        command = build_worker_command(
            ListenAddress(LOOPBACK, free_port(), free_port()),
            self.master_url,
            WorkerResources(1, "600m", folder),
        )
        env = {**command.env, **self._environment, "TMPDIR": str(folder)}
        self._start(f"worker-{number}", LaunchCommand(self.worker_argv(command.argv, folder), env))

    def worker_argv(self, argv: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command that starts a worker that has `folder`."""
        return tuple(argv)

    def kill(self, name: str) -> None:
        """Kill a process with -9, with all that it has started."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Kill what runs."""
        for name in list(self._processes):
            self.kill(name)

    def wait_for_executors(self, count: int) -> None:
        """Wait until the Connect server has `count` executors. Raises StackError."""
        self._wait_for(lambda: self._executors() == count, f"{count} executors")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            ended = [
                name for name, process in self._processes.items() if process.poll() is not None
            ]
            if ended or time.monotonic() > deadline:
                raise StackError(f"Spark has no {what}; ended: {ended}\n{self._logs()}")
            time.sleep(0.1)

    def _executors(self) -> int:
        try:
            with urllib.request.urlopen(
                f"http://{LOOPBACK}:{self._page}/json/", timeout=10
            ) as answer:
                status: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):  # it is starting
            return 0
        if not any(app["state"] == "RUNNING" for app in status["activeapps"]):
            return 0
        return sum(one["coresused"] for one in status["workers"] if one["state"] == "ALIVE")

    def _takes_connections(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self._remote_port), 1.0).close()
        except OSError:
            return False
        return True

    def _start(self, name: str, command: LaunchCommand) -> None:
        command = with_authentication(command, self._secret)
        env = base_environment()
        del env["PYTHONPATH"]
        env |= {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": LOOPBACK, **command.env}
        env["SPARK_DAEMON_JAVA_OPTS"] = (
            f"{env.get('SPARK_DAEMON_JAVA_OPTS', '')} {class_archive_option()}".strip()
        )
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command.argv,
                env=env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=command.fds,
            )
        for file in command.fds:
            os.close(file)

    def _logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-1000:]}" for path in self.home.glob("*.log")
        )


def free_port() -> int:
    """Return a TCP port at which no process listens now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
