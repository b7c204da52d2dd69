"""Run Flink SQL in a Java process of its own: a table environment with its cluster in it.

The jars of `flink_jars.txt` are those of Flink, its Kafka connector and its formats. Python reaches
them by Py4J, which Spark brings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import JavaGateway

from tests.kafka_broker import JARS
from tests.maven_jars import fetch_jars

LIST = Path(__file__).with_name("flink_jars.txt")
_OPTIONS = ("-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPENED = (
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.lang"),
    *("java.lang.reflect", "java.net", "java.io", "java.nio", "java.time", "java.text"),
)
"""Packages of java.base that Flink's own start script opens to it."""
_SETTINGS = {
    "parallelism.default": "1",
    "table.local-time-zone": "UTC",
    "collect-sink.batch-size.max": "64mb",  # a row may be larger than the default
}


class Changed(NamedTuple):
    """A row of a changelog. `kind`: +I, -U, +U or -D, as Flink prints it."""

    kind: str
    fields: list[str]


class Flink:
    """A table environment in streaming mode."""

    def __init__(self, jvm: Any) -> None:
        configuration = jvm.org.apache.flink.configuration.Configuration()
        for key, value in _SETTINGS.items():
            configuration.setString(key, value)
        settings = jvm.org.apache.flink.table.api.EnvironmentSettings.newInstance()
        settings = settings.inStreamingMode().withConfiguration(configuration).build()
        self._tables = jvm.org.apache.flink.table.api.TableEnvironment.create(settings)

    def execute(self, statement: str) -> None:
        """Execute a statement that has no rows."""
        self._tables.executeSql(statement)

    def changelog(self, query: str) -> list[Changed]:
        """Return what a query of bounded sources yields until they end; its columns are texts."""
        result = self._tables.executeSql(query)
        width = result.getResolvedSchema().getColumnCount()
        with contextlib.closing(result.collect()) as rows:
            found = []
            while rows.hasNext():
                row = rows.next()
                fields = [row.getField(n) for n in range(width)]
                found.append(Changed(row.getKind().shortString(), fields))
            return found


@contextlib.contextmanager
def running_flink() -> Iterator[Flink]:
    """Start Flink, and end it. Raises NotAvailableError."""
    jars = fetch_jars(LIST, JARS / "flink")
    (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(py4j),
        classpath=f"{jars}/*",
        javaopts=[*_OPTIONS, *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED)],
        die_on_exit=True,
    )
    try:
        yield Flink(gateway.jvm)
    finally:
        gateway.shutdown()
        gateway.java_process.kill()
        gateway.java_process.wait()
