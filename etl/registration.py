"""The pipeline's entry among the drainers in the registry: how far it has landed, for pumps and operators to see.

Pumps remove nothing silently that a drainer still needs to know of, and one that goes offline for good waits until every
drainer is past what it holds: to them this is a drainer at the commit timestamp that the relay log is complete through.

The state is always ``paused``. A pump that starts calls every *online* drainer and ends itself if one doesn't answer; the
landing task comes and goes, on changing machines, and needs no such call, because windows are planned from a timestamp taken
before the pumps are listed. Paused drainers count in everything else.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable

from etl.settings import Settings
from upstream import EtcdError, NodeStatus, PDError, Registry, RegistryError

log = logging.getLogger("sluice.land")

_HEARTBEAT_S = 1.0
_REPORT_S = 30.0


OWNER_LABEL = "sluice"
"""The label that a pipeline's entry has, and no Drainer's; its value is the relay log's URL. Beside it `downstream`."""


def default_node_id(relay_url: str) -> str:
    """One id a relay log, the same wherever the task runs."""
    return f"sluice-{zlib.crc32(relay_url.rstrip('/').encode()):08x}"


def pipeline_id(settings: Settings) -> str:
    """The id of the pipeline among the drainers in the registry."""
    return settings.upstream.node_id or default_node_id(settings.relay.url)


def downstream_name(settings: Settings) -> str:
    """Where the settings write to, and keep their checkpoint; without secrets."""
    match settings.downstream.type:
        case "file":
            return f"files in {settings.file.dir}"
        case "kafka":
            return f"Kafka {settings.kafka.brokers}, topic {settings.kafka.topic or '<cluster id>_obinlog'}"
    downstream = settings.downstream
    return f"{downstream.host}:{downstream.port}, checkpoint {downstream.checkpoint_schema}.{downstream.checkpoint_table}"


class DrainerEntry:
    """Registers at once and then every second, from a thread of its own; trouble is logged and never stops landing."""

    def __init__(self, registry: Registry, node_id: str, host: str, tso: Callable[[], int], landed_ts: int) -> None:
        """`host`: where the task runs, for people to read. `tso` gives timestamps. `landed_ts`: through where all is landed."""
        self._registry = registry
        self._node_id = node_id
        self._host = host
        self._tso = tso
        self._landed_ts = landed_ts
        self._failed_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drainer-heartbeat", daemon=True)
        self._thread.start()

    def landed(self, ts: int) -> None:
        """Everything through `ts` (TSO) is in the relay log; told with the next heartbeat."""
        self._landed_ts = ts

    def close(self) -> None:
        """Tell the last position and end. Takes as long as a time-out of etcd at most."""
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            last = self._over.is_set()
            self._beat()
            if last:
                return
            self._over.wait(_HEARTBEAT_S)

    def _beat(self) -> None:
        try:
            status = NodeStatus(
                self._node_id, self._host, "paused", max_commit_ts=self._landed_ts, update_ts=self._tso()
            )
            self._registry.update_drainer(status)
        except (EtcdError, RegistryError, PDError, OSError) as error:
            if time.monotonic() - self._failed_at >= _REPORT_S:
                self._failed_at = time.monotonic()
                log.warning("the registry can't be told how far landing is, it goes on: %s", error)
