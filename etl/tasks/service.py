"""Replicate as a service, without Airflow's tasks: land and apply while this process has the lease.

A process without the lease stands by, and takes over when the holder is gone. The work is done by
the worker processes that Airflow's tasks use, too (`worker`). When an operator has to act, a role
waits until it is resumed; the other one goes on.

A process may also be a task of Airflow's that has a time and a name. When its time is up it leaves
the work as it is to the next process of its name.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from sluice.errors import SluiceError, ours
from sluice.etl.settings import Settings
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_task import run_task
from sluice.etl.tasks.worker import WorkerSpec, run_in_worker
from sluice.relay import ClaimLostError
from sluice.relay.service_lease import LEASE_TIMEOUT_S, RENEW_INTERVAL_S, ServiceLease

__all__ = ["ReplicationService"]

log = logging.getLogger("sluice.service")

ROLES = ("land", "apply")
_RUN_S = 300.0
"""Settings are read again after this time, as by the next run of the DAG `replicate`."""
_RETRY_INTERVAL_S = 10.0
_POLL_INTERVAL_S = 1.0
_DETACH_TIMEOUT_S = 10.0
"""How long the roles of a process whose time is up may take to leave their workers."""


class ReplicationService:
    """One process of the service. Safe for threads that ask how it is."""

    def __init__(self, pipeline: NamedPipeline, name: str = "") -> None:
        """Open the service of a pipeline; `name`: as of a `ServiceLease`.

        Raises SettingsError if the pipeline's DAG replicates as well.
        """
        if pipeline.airflow.replication != "service":
            raise SettingsError(
                f"{pipeline.path}: the DAG `replicate` replicates this pipeline; two would take"
                ' over from each other: set replication = "service" in [airflow]'
            )
        self._pipeline = pipeline
        self._name = name
        self._is_active = False
        self._ticked = time.monotonic()
        self._stopped: dict[str, str] = {}
        self._working: set[str] = set()

    def run(self, stop: threading.Event, left_s: Callable[[], float] = lambda: math.inf) -> None:
        """Stand by or replicate until `stop` is set; then end the work in good order.

        When no time is left, leave it to the next process of this name instead.
        """
        lease: ServiceLease | None = None
        while not stop.is_set() and left_s() > 0:
            self._ticked = time.monotonic()
            try:
                lease = lease or ServiceLease(
                    self._pipeline.settings.open_relay().place, self._name
                )
                if lease.try_acquire():
                    self._replicate(lease, stop, left_s)
                    continue
            except Exception as error:
                reason = ours(error)
                if not reason.transient:
                    raise
                log.warning("the lease can't be read: %s", reason)
            stop.wait(_POLL_INTERVAL_S)

    def state(self) -> dict[str, Any]:
        """Return the state for people and probes.

        `alive`: this process isn't stuck. `ready`: it stands by, or both roles work.
        """
        stopped = dict(self._stopped)
        is_ready = not self._is_active or (not stopped and self._working == set(ROLES))
        return {
            "pipeline": self._pipeline.name,
            "state": "active" if self._is_active else "standby",
            "alive": time.monotonic() - self._ticked < 3 * LEASE_TIMEOUT_S,
            "ready": is_ready,
            "stopped": stopped,
        }

    def _replicate(
        self, lease: ServiceLease, stop: threading.Event, left_s: Callable[[], float]
    ) -> None:
        """Land and apply while the lease is renewed."""
        log.info("this process replicates: pipeline=%s", self._pipeline.name)
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._do, args=(what, ended, left_s), name=f"service-{what}")
            for what in ROLES
        ]
        self._is_active = True
        for thread in threads:
            thread.start()
        is_left = False
        try:
            is_left = self._keep(lease, stop, left_s)
            for thread in threads if is_left else ():
                thread.join(_DETACH_TIMEOUT_S)
        finally:
            ended.set()
            for thread in threads:
                while thread.is_alive():  # a batch under way may take minutes
                    thread.join(RENEW_INTERVAL_S)
                    self._ticked = time.monotonic()
                    with contextlib.suppress(SluiceError, OSError):
                        lease.renew()
            self._is_active = False
            if not is_left:
                with contextlib.suppress(SluiceError, OSError):
                    lease.release()
            log.info("this process replicates no longer: pipeline=%s", self._pipeline.name)

    def _keep(
        self, lease: ServiceLease, stop: threading.Event, left_s: Callable[[], float]
    ) -> bool:
        """Renew the lease until `stop` is set, it is lost, or no time is left; whether the last."""
        renewed = time.monotonic()
        while not stop.wait(max(0.0, min(RENEW_INTERVAL_S, left_s()))):
            if left_s() <= 0:
                return True
            try:
                lease.renew()
                renewed = time.monotonic()
            except ClaimLostError as error:
                log.warning("another process replicates: %s", error)
                return False
            except Exception as error:
                reason = ours(error)
                log.warning("the lease can't be renewed: %s", reason)
                if not reason.transient or time.monotonic() - renewed > LEASE_TIMEOUT_S:
                    return False
            self._ticked = time.monotonic()
        return False

    def _do(self, what: str, ended: threading.Event, left_s: Callable[[], float]) -> None:
        """Do a role until `ended` is set or no time is left."""

        def work(settings: Settings, got_on: Callable[[object], None]) -> dict[str, Any]:
            self._stopped.pop(what, None)
            self._working.add(what)
            return run_in_worker(
                WorkerSpec(what, settings), lambda: min(_RUN_S, left_s()), ended, got_on
            )

        def on_stop(reason: SluiceError) -> None:
            self._stopped[what] = f"{reason}. {reason.hint}"

        while not ended.is_set() and left_s() > 0:
            try:
                run_task(self._pipeline, what, work, ended=ended, on_stop=on_stop)
            except SluiceError as error:  # it couldn't be recorded, so no operator can answer it
                on_stop(error)
                ended.wait(_RETRY_INTERVAL_S)
        self._working.discard(what)
