"""Launchers of the one-machine stack's parts: one module a part.

Each knows how its part is started, asked whether it serves, and stopped.
"""

from __future__ import annotations

from pathlib import Path

from sluice.devstack.launch.airflow import PORTS as _AIRFLOW_PORTS
from sluice.devstack.launch.airflow import airflow, airflow_url, password_file, reset_runs
from sluice.devstack.launch.cluster import PORTS as _CLUSTER_PORTS
from sluice.devstack.launch.cluster import cluster
from sluice.devstack.launch.etcd import PORTS as _ETCD_PORTS
from sluice.devstack.launch.etcd import etcd
from sluice.devstack.launch.mariadb import PORTS as _MARIADB_PORTS
from sluice.devstack.launch.mariadb import client_file, connect, drop_everything, mariadb
from sluice.devstack.launch.metrics import PORTS as _METRICS_PORTS
from sluice.devstack.launch.metrics import metrics
from sluice.devstack.launch.programs import require as _require_programs
from sluice.devstack.launch.pump import NAMES as PUMP_NAMES
from sluice.devstack.launch.pump import PORTS as _PUMP_PORTS
from sluice.devstack.launch.pump import pump
from sluice.devstack.launch.service import (
    LOOPBACK,
    NO_RECORDING,
    MissingProgram,
    Service,
    ServiceNotReady,
    StackPaths,
    base_environment,
    get_json,
    secrets_of,
)
from sluice.devstack.launch.spark import PORTS as _SPARK_PORTS
from sluice.devstack.launch.spark import spark
from sluice.devstack.repository import DAGS

PORT_NAMES = [
    *_ETCD_PORTS,
    *_CLUSTER_PORTS,
    *_PUMP_PORTS,
    *_MARIADB_PORTS,
    *_SPARK_PORTS,
    *_AIRFLOW_PORTS,
    *_METRICS_PORTS,
]
"""Every port of a stack, by purpose."""

PART_NAMES = (
    "etcd", "cluster", *PUMP_NAMES, "mariadb", "spark",
    "airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "metrics",
)  # fmt: skip
"""Every part of a stack, in the order in which they are shown."""


def build_parts(site: StackPaths, dags: Path = DAGS) -> dict[str, Service]:
    """Return all parts of the stack at `site`, by name.

    Raises MissingProgram, which names all that isn't installed.
    """
    _require_programs()
    parts = [
        etcd(site),
        cluster(site),
        *(pump(site, name) for name in PUMP_NAMES),
        mariadb(site),
        spark(site),
        *airflow(site, dags),
        metrics(site),
    ]
    return {part.name: part for part in parts}


__all__ = [
    "LOOPBACK",
    "NO_RECORDING",
    "PART_NAMES",
    "PORT_NAMES",
    "PUMP_NAMES",
    "MissingProgram",
    "Service",
    "ServiceNotReady",
    "StackPaths",
    "airflow_url",
    "base_environment",
    "build_parts",
    "client_file",
    "connect",
    "drop_everything",
    "get_json",
    "password_file",
    "reset_runs",
    "secrets_of",
]
