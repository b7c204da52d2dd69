"""Everything that docker-compose.yaml starts, started: a recording goes from the pumps to MariaDB
by way of S3, a Spark cluster and Airflow on Postgres, what arrives is what TiDB had, everybody is
healthy, and all of it ends when told to.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.devstack.compare import compare
from sluice.devstack.recording import Recording
from tests.deploy.as_processes import DEADLINE_S, Machine
from tests.deploy.compose_file import ROOT
from tests.deploy.own_network import own_network

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.slow]

RECORDING = "types"
FOLDER = ROOT / "tests" / "recordings" / RECORDING
GRAFANA = frozenset({"grafana"})
"""Not in Debian."""


def last_label() -> Any:
    return max(Recording(FOLDER).labels, key=lambda label: label.ts)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    home = Path(tempfile.mkdtemp(prefix="sluice-compose-"))
    variables = {
        "STANDIN_RECORDING": RECORDING,
        "TRAFFIC_UNTIL": last_label().name,
        "TRAFFIC_SPEED": "max",
    }
    with own_network():
        # others would take cores from it
        machine = Machine(home, variables, without=GRAFANA, dags=("replicate.py",))
        try:
            machine.up()
            yield machine
        finally:
            machine.kill()
            shutil.rmtree(home, ignore_errors=True)


def eventually(is_so: Callable[[], bool], machine: Machine, *services: str) -> None:
    """Wait for it. If it doesn't come, the ends of the services' logs say why."""
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        logs = "\n".join(machine.services[name].tail() for name in services)
        assert time.monotonic() < until, logs
        time.sleep(0.3)


def connect(machine: Machine) -> pymysql.connections.Connection[Any]:
    service = machine.services["mariadb"]
    password = Path(service.environment["MARIADB_PASSWORD_FILE"]).read_text()
    return pymysql.connect(
        host=service.address, user="sluice", password=password, autocommit=True, charset="utf8mb4"
    )


def checkpoint(machine: Machine) -> int:
    with contextlib.closing(connect(machine)) as database, database.cursor() as cursor:
        try:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        except pymysql.err.ProgrammingError:  # not there yet
            return 0
        rows = cursor.fetchall()
    return int(json.loads(rows[0][0])["commitTS"]) if rows else 0


def scraped(machine: Machine, query: str) -> list[dict[str, Any]]:
    address = machine.services["prometheus"].address
    url = f"http://{address}:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]["result"]


@pytest.mark.beyond_ci
def test_a_recording_goes_through_all_services_and_arrives_whole_and_they_end_when_told(
    machine: Machine,
) -> None:
    last = last_label()
    eventually(
        lambda: checkpoint(machine) >= last.ts, machine, "airflow-scheduler", "spark-connect"
    )
    with contextlib.closing(connect(machine)) as database:
        report = compare(FOLDER / "snapshots" / last.name, database)
    assert report.rows > 0
    assert report.differences == []
    for name, service in machine.services.items():
        if not service.ends:  # still, or again: a busy machine's heartbeats come late
            eventually(lambda service=service: machine.unhealthy(service) == "", machine, name)
    eventually(
        lambda: (
            {one["metric"]["job"] for one in scraped(machine, "up == 1")}
            == {"sluice", "pump", "etcd"}
            and len(scraped(machine, 'up{job="pump"} == 1')) == 2
            and bool(scraped(machine, "sluice_pipeline_readable == 1"))
        ),
        machine,
        "prometheus",
        "metrics",
    )
    codes = machine.down()
    by_signal = {-signal.SIGTERM, 128 + signal.SIGTERM}
    for name, code in codes.items():
        # who has something to bring to an end does so, and says that it did
        assert code == 0 or (
            code in by_signal and name not in ("pump-1", "pump-2", "mariadb", "postgres")
        ), name
