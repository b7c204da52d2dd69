"""Sessions on the warm Spark Connect server.

A session id is derived from a name, so every run of the same role on the same relay log comes back
to the session of the run before, with warm Python workers (a new session costs 3 s, this 0.5 s).
Whatever a killed predecessor left running in it is interrupted first. Sessions are never stopped
from here: the server drops those that are idle for a while.

Workers of a cluster get Sluice over the session, once: see `sluice.etl.spark.shipping`. Another
version of it has another session, as what a Python process has imported stays.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.core import RpcDeadlines
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import ConfigRequest, KeyValue
from pyspark.sql.connect.session import SparkSession

from sluice.errors import Signal
from sluice.etl.settings import SettingsError, Spark
from sluice.etl.spark.error_translation import is_closed_session, summary_line
from sluice.etl.spark.errors import SparkUnavailableError
from sluice.etl.spark.remote_workers import WorkerRequirements
from sluice.etl.spark.session_target import BATCH, SessionLease, SessionTarget

# The error that comes of it has it, too.
warnings.filterwarnings("ignore", message=r".*RETRIES_EXCEEDED", category=UserWarning)

_NAMESPACE = uuid.UUID("5b0f8c1e-6c6e-4f53-9f0e-3d1f7a1f0c55")
_CONFS = {
    # Batches to Python workers: bounded by bytes, since a row may hold a whole transaction.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20),
    "spark.sql.session.timeZone": "UTC",
    # It keeps the last sixteen plans with the rows in them: the archive's are megabytes, and never
    # come again.
    "spark.connect.session.planCache.enabled": "false",
}
_WINDOWS = {
    # A window is small and each partition is a task of its own: nothing to coalesce or to re-plan.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
_TABLES = {
    # Whole tables are shuffled and aggregated; Spark makes partitions of a size that fits.
    "spark.sql.adaptive.enabled": "true",
}
_MAX_GENERATIONS = 1_000
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
_attached: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""The sessions of this process."""
_MARK = "spark.sluice.attached"


class _OtherVersionInstalled(Signal):
    """The session was made ready by another version of Sluice, and has been closed."""


def session_id(session_name: str, generation: int = 0) -> str:
    """Return the session id for a name.

    Later generations are for when the server has closed the earlier ones.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{session_name}#{generation}"))


def connect(place: SessionTarget, timeout_s: float = 60.0) -> SparkSession:
    """Attach to the session of a role ("land", "apply") on a relay log or archive; see `attach`.

    For the role BATCH a session is leased until `close`.
    """
    lease = SessionLease() if place.role == BATCH else None
    name = f"{place.role if lease is None else lease.role} {place.url}"
    confs = _WINDOWS if lease is None else _TABLES
    try:
        places = (place.url, *place.also)
        spark = attach(place.server, name, timeout_s, places=places, confs=confs)
    except BaseException:
        if lease is not None:
            lease.release()
        raise
    spark.sluice_lease = lease
    spark.sluice_name = _work_name(place)
    return spark


def _work_name(place: SessionTarget) -> str:
    """Return the tag that names a session's jobs; tags have no commas."""
    return f"sluice {place.role} at {place.url.partition('?')[0]}".replace(",", "_")


def attach(
    server: Spark,
    session_name: str,
    timeout_s: float = 60.0,
    *,
    places: Sequence[str] = (),
    confs: Mapping[str, str] = _WINDOWS,
) -> SparkSession:
    """Attach to the session that `session_name` stands for.

    Its workers read and write at `places`, URLs. `confs`: settings of Spark's, on top of those that
    all sessions have.

    Jobs left in it are interrupted. Waits up to `timeout_s` for a server that is starting. Raises
    SparkUnavailableError; SettingsError where the settings can't reach the server, where it was
    started with others, or where its workers don't see a folder among `places`.
    """
    deadline = time.monotonic() + timeout_s
    wait_s = 0.1
    generation = 0
    while True:
        try:
            return _attach(server, session_id(session_name, generation), places, confs)
        except _OtherVersionInstalled:
            generation += 1
            continue
        except (PySparkException, grpc.RpcError, AssertionError) as error:
            if is_closed_session(error) and generation < _MAX_GENERATIONS:
                generation += 1
                continue
            if time.monotonic() + wait_s > deadline:
                raise SparkUnavailableError(
                    f"Spark Connect at {server.remote} doesn't answer after {timeout_s:.0f} s"
                    f" ({summary_line(error)}); is"
                    " it running?"
                ) from error
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 2.0)


def interrupt_all() -> None:
    """End what this process has Spark do, in all sessions that it is attached to."""
    for spark in list(_attached):
        with contextlib.suppress(Exception):
            spark.interruptAll()


def close(spark: SparkSession) -> None:
    """Close the connection, and end its lease; the session stays on the server."""
    _attached.discard(spark)
    with contextlib.suppress(Exception):
        spark.client.close()
    if (lease := getattr(spark, "sluice_lease", None)) is not None:
        lease.release()


def _attach(
    server: Spark, identifier: str, places: Sequence[str], confs: Mapping[str, str]
) -> SparkSession:
    spark = SparkSession(connection=Channel(server, identifier))
    try:
        client: Any = spark.client
        client.set_retry_policies(
            [DefaultPolicy(max_retries=4, initial_backoff=50, max_backoff=1_000, jitter=50)]
        )
        # No public way leads here from a session; the defaults are 10 minutes to an hour.
        client._rpc_deadlines = RpcDeadlines(
            reattachable_execute_plan=300.0,
            reattach_execute=300.0,
            analyze_plan=60.0,
            add_artifacts=60.0,
            config=30.0,
            interrupt=15.0,
            release_session=15.0,
            artifact_status=30.0,
            clone_session=30.0,
            get_status=15.0,
            fetch_error_details=15.0,
        )
        _make_ready(server, spark, places, confs)
        _attached.add(spark)
        return spark
    except BaseException:
        close(spark)
        raise


def _make_ready(server: Spark, spark: Any, places: Sequence[str], confs: Mapping[str, str]) -> None:
    mark, master = spark.client.get_config_with_defaults((_MARK, ""), ("spark.master", ""))
    needs = WorkerRequirements(server, master or "")
    needs.check_places(places)
    if mark:
        spark.interruptAll()
    if mark and mark != needs.mark:
        spark.stop()
        raise _OtherVersionInstalled
    if not mark:
        needs.send(spark)
    own = {**_CONFS, **confs, **needs.confs, _MARK: needs.mark}
    configure(spark, server, own)
    needs.note(spark)


def configure(spark: Any, server: Spark, own: Mapping[str, str]) -> None:
    """Set `own`, and the values of ``[spark.conf]``.

    Raises SettingsError for what only the server's start could have set, and hasn't.
    """
    _set(spark, own)
    asked = server.conf_texts
    if not asked:
        return
    _set(spark, asked, silent=True)
    there = spark.client.get_config_with_defaults(*((key, "") for key in asked))
    for (key, wanted), found in zip(asked.items(), there, strict=True):
        if found != wanted:
            raise SettingsError(
                f"[spark.conf] {key} = {wanted!r}: the Spark Connect server at {server.remote} was"
                f" started with {found or 'nothing'!r}, and no session can change that: start it"
                " with this value, as `sluice spark connect` does, or take the key out"
            )


def _set(spark: Any, confs: Mapping[str, str], *, silent: bool = False) -> None:
    pairs = [KeyValue(key=key, value=value) for key, value in confs.items()]
    spark.client.config(ConfigRequest.Operation(set=ConfigRequest.Set(pairs=pairs, silent=silent)))


class Channel(DefaultChannelBuilder):  # type: ignore[misc] # pyspark has no types here
    """Make the channel of a session. The token is in no URL, so that no error shows it."""

    def __init__(self, server: Spark, session_id: str) -> None:
        super().__init__(
            f"{server.remote.rstrip('/')}/;session_id={session_id};user_id=sluice", _CHANNEL_OPTIONS
        )
        self._server = server

    def toChannel(self) -> grpc.Channel:
        """Open the channel.

        Raises SettingsError if a file or a token in the settings is missing.
        """
        server, token = self._server, self._server.token()
        if server.uses_tls:
            credentials = grpc.ssl_channel_credentials(*server.tls_files())
        elif token:
            credentials = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        else:
            return self._insecure_channel(self.endpoint)
        if token:
            shown = grpc.access_token_call_credentials(token)
            credentials = grpc.composite_channel_credentials(credentials, shown)
        return self._secure_channel(self.endpoint, credentials)
