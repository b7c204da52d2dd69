"""``python -m deploy.start.spark master|worker|connect``: one process of a Spark cluster, from its environment.

SPARK_LOCAL_HOSTNAME    under which name the others reach it
SPARK_MASTER            of a worker and of the Connect server: ``spark://host:7077``
SPARK_WORKER_CORES, SPARK_WORKER_MEMORY, SPARK_WORKER_DIR    Spark's own
SPARK_CONF_DIR          the folder with spark-defaults.conf and log4j2.properties
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from deploy.start.secret_files import become
from embedded.launch.spark import java_home
from etl.spark.start import spark_home

MASTER_PORT, MASTER_PAGE = 7077, 8080
WORKER_PORT, WORKER_PAGE = 7078, 8081
CONNECT_PORT = 15002


def command(role: str, environment: Mapping[str, str]) -> list[str]:
    """What to start, behind Spark's ``bin/``. Raises KeyError for a variable that is missing."""
    host = environment["SPARK_LOCAL_HOSTNAME"]
    if role == "master":
        own = ["--host", host, "--port", str(MASTER_PORT), "--webui-port", str(MASTER_PAGE)]
        return ["spark-class", "org.apache.spark.deploy.master.Master", *own]
    if role == "worker":
        own = ["--host", host, "--port", str(WORKER_PORT), "--webui-port", str(WORKER_PAGE)]
        return ["spark-class", "org.apache.spark.deploy.worker.Worker", *own, environment["SPARK_MASTER"]]
    settings = {
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(CONNECT_PORT),
    }
    return [
        "spark-submit",
        "--master", environment["SPARK_MASTER"],
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--name", "sluice",
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
    ]  # fmt: skip


def main() -> None:
    """Becomes the process."""
    if len(sys.argv) != 2 or sys.argv[1] not in ("master", "worker", "connect"):
        sys.exit("usage: python -m deploy.start.spark master|worker|connect")
    home = spark_home()
    try:
        program, *arguments = command(sys.argv[1], os.environ)
    except KeyError as error:
        sys.exit(f"spark: the environment has no {error.args[0]}")
    os.environ.setdefault("SPARK_LOCAL_IP", os.environ["SPARK_LOCAL_HOSTNAME"])  # else the pages are on all addresses
    os.environ.setdefault("SPARK_HOME", str(home))
    os.environ.setdefault("JAVA_HOME", str(java_home()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    become(["/bin/bash", str(home / "bin" / program), *arguments], os.environ)


if __name__ == "__main__":
    main()
