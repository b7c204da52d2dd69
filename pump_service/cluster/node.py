"""Register the pump in the cluster: node id, registry entry, heartbeat, and leaving."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from sluice.errors import SluiceError
from sluice.pump_service.cluster.clock import PdClock
from sluice.pump_service.cluster.heartbeat import Heartbeat
from sluice.pump_service.cluster.notify import notify_drainers
from sluice.tidb.etcd import CAPTURED_LABEL, DRAINED_LABEL, SHARE_LABEL, NodeStatus, Registry
from sluice.tidb.rpc import TLS
from sluice.tidb.table_shares import Share

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_PIPELINE = "sluice"
"""Label of Sluice's pipelines among the drainers.

Pipelines list the pumps before each window, so a new pump need not notify them.
"""
ONLINE, PAUSING, PAUSED, CLOSING, OFFLINE = "online", "pausing", "paused", "closing", "offline"

_MAX_ATTEMPTS = 3
_RETRY_INTERVAL_S = 1.0


class NodeError(SluiceError):
    """Report that the pump can't join the cluster; the message says why and what to do."""

    hint = "fix the cause above, then start the pump again"


def node_id(data_dir: Path, configured: str, advertise_addr: str) -> str:
    """Return the id in `<data dir>/.node`; without one, save the configured or a default one.

    The default is `hostname:port`. The id in the file wins over the configured one: TiDB and
    Drainers know the data under it.
    """
    path = data_dir / ".node"
    try:
        kept = path.read_text().strip()
    except FileNotFoundError:
        kept = ""
    if kept:
        if configured and configured != kept:
            _log.warning(
                "node-id %s is ignored: by %s this data belongs to node %s", configured, path, kept
            )
        return kept
    chosen = configured or f"{socket.gethostname()}:{advertise_addr.rsplit(':', 1)[-1]}"
    _write_new(path, chosen, 0o600)
    return chosen


def check_cluster(data_dir: Path, cluster_id: int) -> None:
    """Raise NodeError for a data directory of another cluster; `<data dir>/.cluster` has the id."""
    path = data_dir / ".cluster"
    try:
        kept = path.read_text().strip()
    except FileNotFoundError:
        _write_new(path, str(cluster_id), 0o600)
        return
    if kept != str(cluster_id):
        raise NodeError(
            f"{data_dir} holds binlogs of cluster {kept}, but PD belongs to cluster {cluster_id}: "
            "check pd-urls, or give this pump another data-dir"
        )


def check_share(data_dir: Path, share: Share, *, is_empty: bool) -> None:
    """Raise NodeError for a data directory of another share; `<data dir>/.share` has it.

    Without that file it has all tables. An empty one (`is_empty`) takes the share.
    """
    path = data_dir / ".share"
    try:
        kept = path.read_text().strip()
    except FileNotFoundError:
        kept = str(Share())
    if kept == str(share):
        return
    if not is_empty:
        raise NodeError(
            f"{data_dir} holds changes of share {kept} of the tables, but [capture] share is"
            f" {str(share)!r}: set it to {kept!r}, or give this pump another data-dir"
        )
    _write_new(path, str(share), 0o600)


def _write_new(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def capture_labels(cluster_id: int, share: Share) -> dict[str, str]:
    """Return the labels of a pump that captures a share of a cluster's tables."""
    found = {CAPTURED_LABEL: str(cluster_id)}
    return found if share.is_whole else found | {SHARE_LABEL: str(share)}


@dataclass(frozen=True, slots=True)
class Membership:
    """Hold the pump's node id and address (host:port), the registry, and PD's clock."""

    node_id: str
    host: str
    registry: Registry
    clock: PdClock


class Node:
    """Hold state and registration.

    `max_commit_ts()` is the store's; all methods are thread-safe.
    """

    def __init__(
        self,
        membership: Membership,
        max_commit_ts: Callable[[], int],
        heartbeat: Heartbeat,
        tls: TLS | None = None,
        captured: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create it; `captured` has the labels of what the pump captures, see `capture_labels`."""
        self.id, self.host = membership.node_id, membership.host
        self._registry, self._clock = membership.registry, membership.clock
        self._max_commit_ts = max_commit_ts
        self._heartbeat = heartbeat
        self._tls = tls
        self.state = PAUSED  # one of online, pausing, paused, closing, offline
        self._label: dict[str, str] | None = None
        self._captured = captured

    def status(self) -> NodeStatus:
        """Return this pump's entry for the registry."""
        return NodeStatus(
            node_id=self.id,
            host=self.host,
            state=self.state,
            label=self._label,
            max_commit_ts=self._max_commit_ts(),
            update_ts=self._clock.estimated_ts(),
        )

    def join(self, begin: Callable[[], object] | None = None) -> None:
        """Register as online, notify drainers that don't know this pump, and start the heartbeat.

        `begin` is given if this pump holds no record. It writes the first one, which is on disk
        before the cluster learns of this pump. Raises NodeError in these cases:

        - another process runs under this id;
        - a drainer can't be notified;
        - the data of a pump that isn't offline is gone: readers would take its windows for empty.
        """
        former = self._retry("read the registry", lambda: self._registry.get_pump(self.id))
        if former is not None:
            self._label = None if former.label is None else dict(former.label)
            if self._label is not None:
                for own in (DRAINED_LABEL, CAPTURED_LABEL, SHARE_LABEL):
                    self._label.pop(own, None)
            if former.host != self.host and former.state in (ONLINE, PAUSING, CLOSING):
                self._check_alone(former)
        if self._captured:
            self._label = {**(self._label or {}), **self._captured}
        if begin is not None:
            if former is not None and former.state != OFFLINE and former.max_commit_ts:
                raise NodeError(
                    f"the registry knows pump {self.id} as {former.state} with binlogs through"
                    f" {former.max_commit_ts}, but there is none in its data directory: is a disk"
                    " not mounted? Bring the directory back; or, if it is lost, `sluice pumps"
                    f" offline {self.id} --gone`, `sluice pumps forget {self.id}`, and start it"
                    " again"
                )
            try:
                begin()
            except Exception as error:
                raise NodeError(f"the first binlog can't be written: {error}") from error
        self.state = ONLINE
        self._retry("register", self._publish)
        if former is None or former.state == OFFLINE:
            try:
                notify_drainers(
                    [
                        d
                        for d in self._registry.drainers()
                        if d.state == ONLINE and _PIPELINE not in (d.label or {})
                    ],
                    tls=self._tls,
                )
            except Exception as error:
                # A drainer that doesn't know this pump would miss its data.
                self.state = OFFLINE
                self._retry("register", self._publish)
                raise NodeError(f"fail to notify all living drainer: {error}") from None
        self._heartbeat.start(self.status)
        _log.info("registered as %s at %s, online", self.id, self.host)

    def announce(self) -> None:
        """Write the current state to the registry soon. Returns at once."""
        self._heartbeat.changed()

    def leave(self, state: str, drained_ts: int | None = None) -> None:
        """End the heartbeat with `state` as the final one. Returns at once; `wait_left` waits.

        `drained_ts` is a TSO through which every drainer has read this pump, which has no data
        behind it.
        """
        if drained_ts is not None:
            self._label = {**(self._label or {}), DRAINED_LABEL: str(drained_ts)}
        self.state = state
        self._heartbeat.end()

    def wait_left(self) -> None:
        """Wait for the final state in the registry, up to 2 s after `leave`.

        A failure is only logged.
        """
        self._heartbeat.join()

    def _publish(self) -> None:
        self._registry.update_pump(self.status())

    def _check_alone(self, former: NodeStatus) -> None:
        deadline = time.monotonic() + 2.5 * self._heartbeat.every_s
        while time.monotonic() < deadline:
            time.sleep(0.2)
            now = self._registry.get_pump(self.id)
            if now is not None and now.host == former.host and now.update_ts != former.update_ts:
                raise NodeError(
                    f"a pump with node id {self.id} is running at {former.host}: "
                    "stop it, or give this one another node-id and data-dir"
                )

    def _retry(self, what: str, call: Callable[[], _T], tries: int = _MAX_ATTEMPTS) -> _T:
        for left in range(tries - 1, -1, -1):
            try:
                return call()
            except Exception as error:
                if not left:
                    raise NodeError(f"can't {what} (etcd of PD): {error}") from error
                _log.warning("can't %s, %d attempts left: %s", what, left, error)
                time.sleep(_RETRY_INTERVAL_S)
        raise AssertionError
