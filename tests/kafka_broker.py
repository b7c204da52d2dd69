"""Run tests against a real Apache Kafka broker, whose jars come from Maven Central.

    python -m tests.kafka_broker PYTEST-ARGUMENT …     # `make test-kafka` names them

The jars of `kafka_jars.txt` go to .venv/kafka, once, and each must have its listed SHA-256. The
broker is its own controller (KRaft), listens on free loopback ports and keeps its data in a
temporary folder. Tests find it in SLUICE_TEST_KAFKA, and a schema registry
(`tests.schema_registry`) in SLUICE_TEST_REGISTRY.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.maven_jars import NotAvailableError, fetch, fetch_jars
from tests.ports import free_ports
from tests.schema_registry import running_schema_registry, unpacked

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("kafka_jars.txt")
JARS = ROOT / ".venv" / "kafka"
NOT_AVAILABLE = 69
"""Exit code (EX_UNAVAILABLE) where jars or Java are not to be had: `.ci/run` goes on then."""
_START_TIMEOUT_S = 120
_CLUSTER = "Zb3BZc3pRzqN1uVGbQ1wqA"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextlib.contextmanager
def running_broker(settings: str = "", options: Sequence[str] = (), port: int = 0) -> Iterator[str]:
    """Start a broker with further settings and Java options, yield its host:port, and end it.

    `port`: of its listener without authentication; a free one by default. Raises
    NotAvailableError.
    """
    java = shutil.which("java")
    if java is None:
        raise NotAvailableError("there is no java: make setup")
    command = [java, *options, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
    command.append(f"{fetch_jars(LIST, JARS)}/*")
    with tempfile.TemporaryDirectory(prefix="kafka-") as name:
        folder = Path(name)
        free, controller = free_ports(2)
        port = port or free
        properties = folder / "server.properties"
        properties.write_text(
            _SETTINGS.format(port=port, controller=controller, folder=name) + settings,
            encoding="utf-8",
        )
        with (folder / "log").open("wb") as log:
            format_it = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c"]
            subprocess.run(
                [*command, *format_it, properties], check=True, stdout=log, stderr=subprocess.STDOUT
            )
            server = subprocess.Popen(
                [*command, "kafka.Kafka", properties], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _wait(server, f"127.0.0.1:{port}", folder / "log")
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()  # its data goes, too
            server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise RuntimeError(f"the Kafka broker at {address} did not start:\n{tail}")
        with contextlib.suppress(KafkaException):
            if client.list_topics(timeout=1).brokers:
                return


@contextlib.contextmanager
def _registry() -> Iterator[str]:
    """Start a schema registry and yield its URL; "" where it can't be had."""
    try:
        jars = unpacked(JARS, fetch)
    except NotAvailableError as error:
        print(f"kafka_broker: no test ran on a real schema registry: {error}", file=sys.stderr)
        yield ""
        return
    with running_schema_registry(jars, *free_ports(1)) as url:
        yield url


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Leave by an exception, so that the servers and pytest end, too."""
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Run pytest beside a broker, and again what failed, alone."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(
        signal.SIGABRT, lambda *_: None
    )  # at `.ci/run`'s limit the tests end by themselves
    try:
        with running_broker() as address, _registry() as registry:
            print(f"kafka_broker: Apache Kafka at {address}, registry at {registry}", flush=True)
            environment = os.environ | {"SLUICE_TEST_KAFKA": address}
            environment |= {"SLUICE_TEST_REGISTRY": registry} if registry else {}
            command = [sys.executable, "-m", "tests.flaky", "-n3", *arguments]
            return subprocess.call(command, cwd=ROOT, env=environment)
    except NotAvailableError as error:
        print(f"kafka_broker: no test ran on a real broker: {error}", file=sys.stderr)
        return NOT_AVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
