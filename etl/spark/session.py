"""Sessions on the warm Spark Connect server.

A session id is derived from a name, so that every run of the same role on the same relay log comes back to the session
of the run before, whose Python workers are warm (a new session costs 3 s, this 0.5 s). Whatever a killed predecessor
left running in it is interrupted first. Sessions are never stopped from here: the server drops them when nobody has
used them for a while.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import warnings
from typing import Any

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.core import RpcDeadlines
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from etl.spark.errors import SparkUnavailableError
from etl.spark.judge import first_line, is_closed_session

# The error that comes of it says it, too.
warnings.filterwarnings("ignore", message=r".*RETRIES_EXCEEDED", category=UserWarning)

_NAMESPACE = uuid.UUID("5b0f8c1e-6c6e-4f53-9f0e-3d1f7a1f0c55")
_CONFS = {
    # A window is small and each partition is a task of its own: nothing to coalesce or to re-plan.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Batches to Python workers: bounded by bytes, since a row may hold a whole transaction.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20),
    "spark.sql.session.timeZone": "UTC",
}
_CHANNEL = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
_GENERATIONS = 1_000
_MARK = "spark.sluice.attached"


def session_id(session_name: str, generation: int = 0) -> str:
    """The session id for a name; later generations are for when the server has closed the earlier ones."""
    return str(uuid.uuid5(_NAMESPACE, f"{session_name}#{generation}"))


def connect(remote: str, role: str, relay_url: str, timeout_s: float = 60.0) -> SparkSession:
    """Attach to the session of a role ("land", "apply") on a relay log; see `attach`."""
    return attach(remote, f"{role} {relay_url}", timeout_s)


def attach(remote: str, session_name: str, timeout_s: float = 60.0) -> SparkSession:
    """Attach to the session that `session_name` stands for, on the server at `remote` (``sc://host:port``).

    Jobs left in it are interrupted. Waits up to `timeout_s` for a server that is starting.
    Raises SparkUnavailableError.
    """
    deadline = time.monotonic() + timeout_s
    wait_s = 0.1
    generation = 0
    while True:
        try:
            return _attach(remote, session_id(session_name, generation))
        except (PySparkException, grpc.RpcError, AssertionError) as error:
            if is_closed_session(error) and generation < _GENERATIONS:
                generation += 1
                continue
            if time.monotonic() + wait_s > deadline:
                raise SparkUnavailableError(
                    f"Spark Connect at {remote} doesn't answer after {timeout_s:.0f} s ({first_line(error)}); is it"
                    " running?"
                ) from error
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 2.0)


def close(spark: SparkSession) -> None:
    """Close the connection; the session stays on the server."""
    with contextlib.suppress(Exception):
        spark.client.close()


def _attach(remote: str, identifier: str) -> SparkSession:
    builder = DefaultChannelBuilder(f"{remote.rstrip('/')}/;session_id={identifier};user_id=sluice", _CHANNEL)
    spark = SparkSession(connection=builder)
    try:
        client: Any = spark.client
        client.set_retry_policies([DefaultPolicy(max_retries=4, initial_backoff=50, max_backoff=1_000, jitter=50)])
        # No public way leads here from a session; the defaults are 10 minutes to an hour.
        client._rpc_deadlines = RpcDeadlines(
            reattachable_execute_plan=300.0, reattach_execute=300.0, analyze_plan=60.0, add_artifacts=60.0, config=30.0,
            interrupt=15.0, release_session=15.0, artifact_status=30.0, clone_session=30.0, get_status=15.0,
            fetch_error_details=15.0,
        )  # fmt: skip
        if spark.conf.get(_MARK, "") == "yes":
            spark.interruptAll()
        for name, value in (_CONFS | {_MARK: "yes"}).items():
            spark.conf.set(name, value)
        return spark
    except BaseException:
        close(spark)
        raise
