"""Run Kafka Connect with one sink connector, standalone, in a Java process of its own.

The jars of `connect_jars.txt` are those of Kafka Connect, Debezium's JDBC sink and MariaDB's
driver, beside the broker's.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.kafka_broker import JARS
from tests.kafka_broker import LIST as BROKER_LIST
from tests.maven_jars import fetch_jars
from tests.ports import free_ports

LIST = Path(__file__).with_name("connect_jars.txt")
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_WORKER = """\
bootstrap.servers={brokers}
listeners=http://127.0.0.1:{port}
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
"""
_TIMEOUT_S = 150
"""How long the connector may take to start and to read what is there."""


class Connector:
    """A connector and its tasks."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, brokers: str, name: str, log: Path
    ) -> None:
        self._process = process
        self._url = url
        self._brokers = brokers
        self._name = name
        self._log = log

    def failure(self) -> str:
        """Return the stack trace of a task that failed; "" if none did."""
        if self._process.poll() is not None:
            return self._log.read_text(errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"{self._url}/status", timeout=10) as answer:
                status: dict[str, Any] = json.load(answer)
        except OSError:  # it hasn't come up, or doesn't know the connector yet
            return ""
        parts = [status["connector"], *status["tasks"]]
        return next((part["trace"] for part in parts if part["state"] == "FAILED"), "")

    def wait_for(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Wait until it has written everything before the offsets `ends` of each partition.

        Raises AssertionError if a task fails or it takes too long.
        """
        group = {"bootstrap.servers": self._brokers, "group.id": f"connect-{self._name}"}
        consumer = Consumer(group)
        deadline = time.monotonic() + _TIMEOUT_S
        places = [TopicPartition(*place) for place in ends]
        try:
            while True:
                done = consumer.committed(places, timeout=30)
                behind = [p for p in done if p.offset < ends[p.topic, p.partition]]
                if not behind:
                    return
                assert not (failure := self.failure()), failure
                assert time.monotonic() < deadline, f"not read: {behind}"
                time.sleep(0.3)
        finally:
            consumer.close()


@contextlib.contextmanager
def running_connector(brokers: str, properties: Mapping[str, str]) -> Iterator[Connector]:
    """Start a worker with a connector of these properties, and end it.

    Raises NotAvailableError.
    """
    jars = (fetch_jars(LIST, JARS / "connect"), fetch_jars(BROKER_LIST, JARS))
    (port,) = free_ports(1)
    name = properties["name"]
    with tempfile.TemporaryDirectory(prefix="connect-") as text:
        folder = Path(text)
        worker, connector, log = folder / "worker", folder / "connector", folder / "log"
        converters = "".join(
            f"{part}.converter=org.apache.kafka.connect.json.JsonConverter\n"
            for part in ("key", "value")
        )
        worker.write_text(
            _WORKER.format(brokers=brokers, port=port, folder=folder) + converters, encoding="utf-8"
        )
        connector.write_text(
            "".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8"
        )
        command = ["java", *_OPTIONS, "-cp", ":".join(f"{each}/*" for each in jars)]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Connector(
                process, f"http://127.0.0.1:{port}/connectors/{name}", brokers, name, log
            )
        finally:
            process.kill()
            process.wait()
