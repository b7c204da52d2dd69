"""A Spark Connect server for the test session."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.devstack.launch.service import StackPaths, base_environment
from sluice.devstack.launch.spark import spark as spark_part
from tests.ports import free_port


class SparkServer:
    """A Spark Connect server as a child process; `kill` and `start` again keep its port."""

    def __init__(self, home: Path) -> None:
        self.part = spark_part(StackPaths(home, {"spark": free_port()}, home))
        self.remote = f"sc://127.0.0.1:{self.part.ports['connect']}"
        self.log = home / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 240) -> None:
        self.part.prepare()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.part.argv,
                env=base_environment() | dict(self.part.env),
                cwd=self.part.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.part.probe()
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"Spark Connect did not start: {self.log.read_text()[-2000:]}"
                    ) from None
                time.sleep(0.1)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped (SIGSTOP) inside, but for its Python workers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if self._process is not None:  # it may have been killed meanwhile
                self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, with its Python workers: they have a group of their own, and would answer for a
        moment longer.
        """
        if self._process is not None:
            workers: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                workers = psutil.Process(self._process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            psutil.wait_procs(workers, 60)


@pytest.fixture(scope="session")
def spark_server() -> Iterator[SparkServer]:
    """The server that `spark_remote` is the address of; for tests that kill and restart it."""
    home = Path(tempfile.mkdtemp(prefix="sluice-spark-"))
    server = SparkServer(home)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def spark_remote(spark_server: SparkServer) -> str:
    """Address (sc://127.0.0.1:port) of a real Spark Connect server, shared by the whole test
    session.
    """
    return spark_server.remote
