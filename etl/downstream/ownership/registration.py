"""Keep the pipeline's entry among the drainers in the registry: how far it has landed.

Pumps and operators read it.

Pumps remove nothing silently that a drainer still needs to know of, and one that goes offline for
good waits until every drainer is past what it holds: to them this is a drainer at the commit
timestamp that the relay log is complete through.

While landing works the state is ``online``, for people and scripts that look. A pump that starts
calls every online drainer (`binlog.Cistern/Notify`), at the address that the entry names, and an
original pump ends itself if one doesn't answer; the landing task comes and goes, on changing
machines, and a killed one would keep pumps from starting. It needs no such call, because windows
are planned from a timestamp taken before the pumps are listed. So the entry names a pump of
Sluice's, which answers in its place and outlives it; where none answers, the state is ``paused``:
such entries are not called, and count in everything else.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from sluice.etl.downstream.ownership.pipeline import PipelineIdentity
from sluice.tidb import TLS, EtcdError, NodeStatus, PDError, Registry, RegistryError, pb
from sluice.tidb.rpc import open_channel

log = logging.getLogger("sluice.land")

_HEARTBEAT_INTERVAL_S = 1.0
_DELEGATE_SEARCH_INTERVAL_S = 5.0
_ANSWER_TIMEOUT_S = 1.0
_REPORT_INTERVAL_S = 30.0


class RegistryHeartbeat:
    """Register at once and then every second, from a thread of its own.

    Trouble is logged and never stops landing.
    """

    def __init__(
        self,
        pipeline: PipelineIdentity,
        registry: Registry,
        tls: TLS | None,
        tso: Callable[[], int],
        landed_ts: int,
    ) -> None:
        """Create the registry heartbeat; `tls` is for the pumps, `tso` gives timestamps.

        `landed_ts`: through where all is landed.
        """
        self._registry = registry
        self._pipeline = pipeline
        self._delegate = _NotifyDelegate(registry, tls)
        self._tso = tso
        self._landed_ts = landed_ts
        self._working = True
        self._failed_at = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drainer-heartbeat", daemon=True)
        self._thread.start()

    def landed(self, ts: int) -> None:
        """Set the TSO through which the relay log is complete; the next heartbeat reports it."""
        self._landed_ts = ts

    def set_working(self, *, working: bool) -> None:
        """Set whether landing goes on, or operators have it wait."""
        self._working = working

    def close(self) -> None:
        """Write the last position and end. Takes as long as a time-out of etcd at most."""
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            last = self._stopped.is_set()
            self._beat(last=last)
            if last:
                return
            self._stopped.wait(_HEARTBEAT_INTERVAL_S)

    def _beat(self, *, last: bool) -> None:
        try:
            host = None if last or not self._working else self._delegate.host()
            status = NodeStatus(
                self._pipeline.id, host or socket.gethostname(), "online" if host else "paused",
                label=self._pipeline.label, max_commit_ts=self._landed_ts, update_ts=self._tso(),
            )  # fmt: skip
            self._registry.update_drainer(status)
        except (EtcdError, RegistryError, PDError, OSError) as error:
            if time.monotonic() - self._failed_at >= _REPORT_INTERVAL_S:
                self._failed_at = time.monotonic()
                log.warning(
                    "can't write to the registry how far landing is; landing goes on: %s", error
                )


class _NotifyDelegate:
    """Find a pump that answers `Notify` in the pipeline's place, as Sluice's do."""

    def __init__(self, registry: Registry, tls: TLS | None) -> None:
        self._registry = registry
        self._tls = tls
        self._host: str | None = None
        self._due = 0.0

    def host(self) -> str | None:
        """Return the address of a pump that answers in its place, None if there is none.

        It is looked for again at intervals. Raises EtcdError, RegistryError.
        """
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _DELEGATE_SEARCH_INTERVAL_S
            hosts = [pump.host for pump in self._registry.pumps() if pump.state == "online"]
            hosts.sort(key=lambda host: host != self._host)
            self._host = next((host for host in hosts if self._answers(host)), None)
        return self._host

    def _answers(self, host: str) -> bool:
        import grpc

        try:
            with open_channel(host, self._tls) as channel:
                call = channel.unary_unary(
                    "/binlog.Cistern/Notify",
                    request_serializer=pb.pump.NotifyReq.SerializeToString,
                    response_deserializer=pb.pump.NotifyResp.FromString,
                )
                call(pb.pump.NotifyReq(), timeout=_ANSWER_TIMEOUT_S)
            return True
        except (grpc.RpcError, OSError):
            return False
