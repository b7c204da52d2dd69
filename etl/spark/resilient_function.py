"""A function in Spark's workers that survives the loss of its session.

While the server is away, small calls are mapped in this process, by the same function. A Spark
Connect server that was killed is there again after ten seconds and more, and its first Python
worker some seconds later. A small window needs neither: it is some milliseconds of work. So it is,
too, while other jobs have all of Spark's cores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from sluice.errors import SluiceError, ours
from sluice.etl.retry import RetryBackoff
from sluice.etl.spark import reachability
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import (
    SlowWorkerError,
    SparkError,
    SparkUnavailableError,
    WorkerError,
    parse_worker_error,
)
from sluice.etl.spark.persistent_worker import NoFreeCore
from sluice.etl.spark.remote_function import RemoteFunction
from sluice.etl.spark.session_target import SessionTarget

__all__ = ["LOCAL_FALLBACK_BYTES", "ResilientFunction"]

log = logging.getLogger("sluice.spark")

LOCAL_FALLBACK_BYTES = 2**20
"""The largest call that is mapped in this process, in bytes of payloads or parts: 20 ms of work."""
_CONNECT_TIMEOUT_S = 10.0
_IDLE_TIMEOUT_S = 60.0
"""Stop reconnecting after this long without a caller."""
_CORE_TIMEOUT_S = 5.0
"""How long a small call waits for a core: a job that ends or a worker that is renewed frees one
sooner, the tasks of a large job may hold all of them for minutes.
"""
_CLOSE_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.1


def _nothing() -> None:
    pass


class ResilientFunction:
    """A function that threads may call at once. After `close` it connects again at its next use."""

    def __init__(
        self,
        place: SessionTarget,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schemas: tuple[pa.Schema, pa.Schema],
    ) -> None:
        """Prepare calls of `function`, which maps batches in the first schema to the second.

        Nothing is connected yet.
        """
        self._place = place
        self._map = function
        self._schemas = schemas
        self._errors = ErrorTranslator()
        self._local_lock = threading.Lock()
        self._changed = threading.Condition()
        """Held while one of the following changes."""
        self._spark: Any = None
        self._function: RemoteFunction | None = None
        self._reconnector: _Reconnector | None = None
        self._check: Callable[[], None] = _nothing
        self._is_suspect = False
        """Whether a call lost its worker since one succeeded, and may be what killed it."""

    def connect(self, timeout_s: float, check: Callable[[], None] = _nothing) -> None:
        """Connect to a session.

        Where the server takes connections the first one is waited for, up to `timeout_s`. Where
        that fails, and where a session was lost, a thread connects in the background, and its
        worker is ready before it is used. `check` is called before each attempt, which breaks off
        what others have under way in the same role. An error of `check` ends the connecting, and
        the next call raises it, unless that comes with another `check`.

        Raises SparkUnavailableError, SettingsError, and what `check` raises.
        """
        with self._changed:
            is_same, self._check = check == self._check, check
            if self._function is not None:
                return
            reconnector = self._reconnector
            if reconnector is not None and (reconnector.is_over or not is_same):
                self._reconnector = None
                reconnector.leave()
                if is_same:
                    reconnector.extend()
                self._reconnector = self._start_reconnecting()
            if self._reconnector is not None:
                return
        check()
        try:
            spark, function = self._connected_at_once(timeout_s)
        except SparkUnavailableError:
            with self._changed:
                if self._function is None and self._reconnector is None:
                    self._reconnector = self._start_reconnecting()
            raise
        with self._changed:
            self._spark, self._function = spark, function

    def __call__(
        self, tasks: pa.Table, timeout_s: float, *, alone: bool, is_small: bool, label: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """Call the function as RemoteFunction does, with its `label`, after `connect`.

        `is_small`: the call is at most LOCAL_FALLBACK_BYTES, and is mapped in this process while
        the server is away, or has no free core. Where only its worker has died another one is
        waited for: the call may be what killed it. Raises SparkError, also where a session is
        missing that is needed.
        """
        function = self._function or self._wait_for_session(timeout_s, or_away=is_small)
        if function is None:
            yield from self._run_locally(tasks)
            return
        try:
            may_be_local = is_small and alone and not self._is_suspect
            core_timeout_s = _CORE_TIMEOUT_S if may_be_local else None
            yield from function(
                tasks, timeout_s, alone=alone, core_timeout_s=core_timeout_s, label=label
            )
            self._is_suspect = False
            return
        except NoFreeCore:
            pass
        except WorkerError:
            raise
        except SlowWorkerError:
            self._is_suspect = True
            raise
        except SparkUnavailableError:
            self._on_session_lost(function)
            if not (is_small and alone):
                raise
        except SparkError:
            self._is_suspect = True
            self._on_session_lost(function)
            raise
        yield from self._run_locally(tasks)

    def interrupt(self) -> None:
        """End the jobs that are under way."""
        spark = self._spark
        if spark is not None:
            spark.interruptAll()

    def close(self) -> None:
        """Drop the connection and release the workers."""
        with self._changed:
            reconnector, self._reconnector = self._reconnector, None
            function, self._function = self._function, None
            spark, self._spark = self._spark, None
        if reconnector is not None:
            reconnector.end()
        _release(spark, function)

    def _connected(self, timeout_s: float) -> tuple[Any, RemoteFunction]:
        spark = spark_session.connect(self._place, timeout_s)
        return spark, RemoteFunction(
            (spark, self._place.server), self._map, self._schemas, self._errors
        )

    def _connected_at_once(
        self, timeout_s: float = _CONNECT_TIMEOUT_S
    ) -> tuple[Any, RemoteFunction]:
        reachability.check_reachable(self._place.server)
        return self._connected(timeout_s)

    def _on_session_lost(self, function: RemoteFunction) -> None:
        """Reconnect after the loss of a session; only the first caller that meets it does."""
        with self._changed:
            if self._function is not function:
                return
            spark, self._spark, self._function = self._spark, None, None
            self._reconnector = self._start_reconnecting()
        _release(spark, function)

    def _start_reconnecting(self) -> _Reconnector:
        return _Reconnector(self._connected_at_once, self._take, self._check)

    def _take(self, reconnector: _Reconnector, spark: Any, function: RemoteFunction) -> bool:
        """Return whether what was asked for is still wanted."""
        with self._changed:
            if self._reconnector is not reconnector:
                return False
            self._spark, self._function, self._reconnector = spark, function, None
            self._changed.notify_all()
            return True

    def _wait_for_session(self, timeout_s: float, *, or_away: bool) -> RemoteFunction | None:
        """Return the function once there is one. `or_away`: None where the server is found away."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._function is not None:
                    return self._function
                if self._reconnector is None:
                    raise SparkError("there is no Spark session yet, or any more", transient=True)
                self._reconnector.extend()
                failure = self._reconnector.failure
            # Looked at from here, too: an attempt that began a moment before the server went takes
            # its time.
            if or_away and (isinstance(failure, SparkUnavailableError) or not self._is_reached()):
                return None
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise SparkError(f"no Spark session within {timeout_s:.0f} s", transient=True)
            with self._changed:
                if self._function is None:
                    self._changed.wait(_POLL_INTERVAL_S)

    def _is_reached(self) -> bool:
        try:
            reachability.check_reachable(self._place.server)
        except SparkUnavailableError:
            return False
        return True

    def _run_locally(self, tasks: pa.Table) -> Iterator[pa.RecordBatch]:
        with self._local_lock:
            try:
                for batch in self._map(iter(tasks.combine_chunks().to_batches())):
                    yield (
                        batch
                        if batch.schema.equals(self._schemas[1])
                        else batch.cast(self._schemas[1])
                    )
            except Exception as error:
                if (
                    worker_error := parse_worker_error(
                        str(error), "in this process, as Spark is away or busy"
                    )
                ) is None:
                    raise
                raise worker_error from error


class _Reconnector:
    """A thread that asks for a session again and again, for as long as one is wanted."""

    def __init__(
        self,
        connected: Callable[[], tuple[Any, RemoteFunction]],
        take: Callable[[_Reconnector, Any, RemoteFunction], bool],
        check: Callable[[], None],
    ) -> None:
        self._connected = connected
        self._take = take
        self._check = check
        self._stopped = threading.Event()
        self._wanted_at = time.monotonic()
        self._connecting: RemoteFunction | None = None
        self.failure: SluiceError | None = None
        """Failure of the last attempt."""
        self._thread = threading.Thread(target=self._run, name="spark-session", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether it has given up, or timed out without a caller."""
        return not self._thread.is_alive()

    def extend(self) -> None:
        """Record demand for a session. Re-raises the last error if it is permanent."""
        self._wanted_at = time.monotonic()
        if self.failure is not None and not self.failure.transient:
            raise self.failure

    def end(self) -> None:
        """Stop reconnecting and wait. An attempt under way ends by itself."""
        self.leave()
        if (coming := self._connecting) is not None:
            coming.release()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def leave(self) -> None:
        """Stop reconnecting without waiting."""
        self._stopped.set()

    def _run(self) -> None:
        waiting = RetryBackoff(log, "a Spark session")
        while not self._stopped.is_set() and time.monotonic() < self._wanted_at + _IDLE_TIMEOUT_S:
            try:
                self._check()
                if self._came():
                    waiting.over()
                    return
            except Exception as error:
                self.failure = ours(error)
                if not self.failure.transient:
                    return
                self._stopped.wait(waiting.after(self.failure))

    def _came(self) -> bool:
        spark, self._connecting = self._connected()
        is_taken = False
        try:
            if not self._stopped.is_set():
                self._connecting.warm_up()
                is_taken = self._take(self, spark, self._connecting)
            return True
        finally:
            if not is_taken:
                _release(spark, self._connecting)


def _release(spark: Any, function: RemoteFunction | None) -> None:
    if function is not None:
        function.release()
    if spark is not None:
        spark_session.close(spark)
