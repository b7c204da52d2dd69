"""A host of Celery's workers dies, or freezes: how long until rows arrive downstream again.

    make test-celery

A real broker (Debian's redis-server), Airflow with the Celery executor, two workers that each stand
for a host, and the one-machine stack's pump, Spark and MariaDB with live traffic. Not among the
tests that run every time: Airflow's Celery provider isn't a dependency. It is put into .venv/celery
with what `celery_packages.txt` lists.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pymysql
import pytest

from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import (
    PART_NAMES,
    base_environment,
    build_parts,
    connect,
    get_json,
)
from sluice.devstack.launch.service import find_program
from sluice.devstack.stack import Stack
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(__file__).with_name("celery_packages.txt")
FOLDER = ROOT / ".venv" / "celery"
HOST_MARK = "SLUICE_TEST_HOST"
PARTS = [name for name in PART_NAMES if name not in ("airflow-scheduler", "metrics")]
STOCK = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "300",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "5",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
}
"""Airflow's own defaults, where airflow.cfg has others."""
QUEUES = '[airflow]\nreplication = "service"\nservice-queues = ["east", "west"]\n'
TRAFFIC_PER_S = 10.0
TAKEOVER_S = 90.0
"""A stock Airflow alone takes 300 s. It is 15 s and the start of a worker process, which takes a
machine with a load of 15 on two cores 20 to 30 s.
"""
pytestmark = pytest.mark.timeout(1800)


def installed() -> Path:
    """Return the folder with the Celery provider and what it needs beside .venv's packages."""
    wanted, marker = PACKAGES.read_text(), FOLDER / PACKAGES.name
    if not marker.exists() or marker.read_text() != wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
        uv = [str(ROOT / ".venv" / "uv" / "bin" / "uv"), "pip", "install", "--quiet"]
        to = ["--python", sys.executable, "--target", str(FOLDER), "--no-deps"]
        subprocess.run([*uv, *to, "--requirement", str(PACKAGES)], check=True)
        marker.write_text(wanted)
    return FOLDER


def until(true: Callable[[], object], timeout_s: float = 600.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Cluster:
    """A stack whose tasks run by Celery."""

    def __init__(self, home: Path, settings: str, airflow: dict[str, str]) -> None:
        self.stack = Stack(home, settings=settings)
        self._started: list[subprocess.Popen[bytes]] = []
        self._broker_port = free_port()
        self._airflow = airflow

    def start(self) -> None:
        broker = find_program("redis-server", "redis-server")
        port = str(self._broker_port)
        self.stack.home.mkdir(parents=True)
        self._run("broker", [broker, "--port", port, "--bind", "127.0.0.1", "--save", ""], {})
        self.stack.up(PARTS, live=True)
        self._run("scheduler", [*_airflow(), "scheduler", "--skip-serve-logs"], self._environment())
        for host in ("east", "west"):
            pid_file = str(self.stack.home / f"{host}.pid")
            self._run(
                host,
                [
                    *(*_airflow(), "celery", "worker", "--concurrency", "4", "--skip-serve-logs"),
                    *("--queues", f"default,{host}", "--celery-hostname", f"{host}@%h"),
                    *("--pid", pid_file),
                ],
                self._environment() | {HOST_MARK: self._mark(host)},
            )

    def close(self) -> None:
        for host in ("east", "west"):
            self.signal(host, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait()
        self.stack.down()

    def working_host(self) -> str:
        """The host of the process that applies, "" while there is none."""
        for host in ("east", "west"):
            for process in self._processes(host):
                with contextlib.suppress(psutil.Error):
                    if "sluice.etl.tasks.worker" in process.cmdline():
                        return host
        return ""

    def signal(self, host: str, number: signal.Signals) -> None:
        """Signal all processes of a host at once."""
        for process in self._processes(host):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def _processes(self, host: str) -> Iterator[psutil.Process]:
        mark = self._mark(host)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(HOST_MARK) == mark:
                    yield process

    def _mark(self, host: str) -> str:
        return f"{host} of {self.stack.home}"

    def arrived(self) -> list[int]:
        """The numbers of the transactions that are downstream."""
        try:
            with connect(self.stack.site()) as database, database.cursor() as cursor:
                cursor.execute("SELECT id FROM sluice_load.txn ORDER BY id")
                return [number for (number,) in cursor.fetchall()]
        except pymysql.Error:  # nothing is there yet
            return []

    def control(self) -> ClusterControl:
        return ClusterControl(self.stack.site().ports["cluster-control"])

    def _environment(self) -> dict[str, str]:
        part = build_parts(self.stack.site())["airflow-scheduler"]
        broker = f"redis://127.0.0.1:{self._broker_port}"
        env = base_environment() | part.env | self._airflow
        return env | {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": f"{broker}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"{broker}/1",
            "PYTHONPATH": f"{env['PYTHONPATH']}:{FOLDER}",
        }

    def _run(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        with open(self.stack.home / f"{name}.log", "ab") as log:
            self._started.append(
                subprocess.Popen(
                    argv, env=env or os.environ, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip


def _airflow() -> tuple[str, ...]:
    return (sys.executable, "-m", "airflow")


@contextlib.contextmanager
def cluster(folder: Path, settings: str, airflow: dict[str, str]) -> Iterator[Cluster]:
    installed()
    found = Cluster(folder / "home", settings, airflow)
    try:
        found.start()
        yield found
    finally:
        found.close()


def takeover_s(one: Cluster, number: signal.Signals) -> float:
    """Signal the host that applies while transactions come; how long until they arrive again."""
    until(lambda: len(one.arrived()) > 10 * TRAFFIC_PER_S)
    host = one.working_host()
    assert host
    one.signal(host, number)
    before, ended = len(one.arrived()), time.monotonic()
    until(lambda: len(one.arrived()) > before)
    took = time.monotonic() - ended
    print(f"\n{number.name} of {host}: rows arrive again after {took:.1f} s")
    return took


def assert_all_arrive(one: Cluster) -> None:
    """End the traffic; all transactions arrive, and nothing differs from the upstream."""
    one.control().stop()
    port = one.stack.site().ports["cluster-control"]
    until(lambda: get_json(f"http://127.0.0.1:{port}/workload")["state"] == "done")
    committed = [number for _, _, number in one.control().numbered_commits() if number is not None]
    until(lambda: len(one.arrived()) >= len(committed))
    assert one.arrived() == sorted(committed)
    config = str(one.stack.site().config)
    subprocess.run([sys.executable, "-m", "sluice.cli", "verify", "--config", config], check=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "freezes"])
def test_tasks_of_service_queues_are_taken_over_with_a_stock_airflow(tmp_path, number):
    with cluster(tmp_path, QUEUES, STOCK) as one:
        one.control().workload({"rate": TRAFFIC_PER_S, "transactions": None, "rows": 3})
        assert takeover_s(one, number) < TAKEOVER_S
        for host in ("east", "west") if number == signal.SIGSTOP else ():
            one.signal(host, signal.SIGCONT)  # it wakes up and finds itself taken over from
        time.sleep(30)
        assert_all_arrive(one)


def test_tasks_of_the_dag_are_taken_over_with_airflow_cfg_as_shipped(tmp_path):
    with cluster(tmp_path, "", {}) as one:
        one.control().workload({"rate": TRAFFIC_PER_S, "transactions": None, "rows": 3})
        assert takeover_s(one, signal.SIGKILL) < 2 * TAKEOVER_S
        assert_all_arrive(one)
