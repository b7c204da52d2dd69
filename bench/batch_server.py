"""A second Spark Connect server on this machine, for [spark.batch] while something is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.devstack.launch.service import LOOPBACK, base_environment
from sluice.devstack.launch.spark import class_archive_option, java_home
from sluice.devstack.launch.standalone import free_port
from sluice.devstack.state import StackError
from sluice.etl.spark.launch import ConnectServer, ListenAddress

_START_TIMEOUT_S = 240.0


@contextlib.contextmanager
def batch_server(home: Path) -> Iterator[str]:
    """Run a Spark Connect server for [spark.batch] on this machine; yield its URL.

    Raises StackError if it doesn't come up.
    """
    port = free_port()
    conf = {"spark.driver.bindAddress": LOOPBACK, "spark.connect.grpc.binding.address": LOOPBACK}
    listening = ListenAddress(LOOPBACK, port)
    server = ConnectServer(
        listening, "local[*]", conf, java_options=class_archive_option(), for_tables=True
    )
    command = server.command()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "batch-server.log").open("ab") as log:
        process = subprocess.Popen(
            command.argv,
            env=base_environment() | {"JAVA_HOME": str(java_home()), **command.env},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((LOOPBACK, port), 1.0).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise StackError(f"Spark doesn't start: see {home / 'batch-server.log'}")
            time.sleep(0.2)
        yield f"sc://{LOOPBACK}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
