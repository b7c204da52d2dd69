"""Look for causes, and give each message to send to exactly one process."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from sluice.etl.operate.node_http import read_text
from sluice.etl.operate.notices.causes import Disks, PumpDisk, TaskReport, find_causes
from sluice.etl.operate.overview import Overview, latest_sizes, overview
from sluice.etl.settings import Settings
from sluice.relay.notices import Notice, Notices

__all__ = ["due_notices", "mark_sent"]

_PATIENCE_S = 10.0
_PUMP_TIMEOUT_S = 2.0
_MAX_ASKED_AT_ONCE = 16
_FREE = re.compile(
    r'^binlog_pump_storage_storage_size_bytes\{type="available"\} ([\d.e+]+)$', re.MULTILINE
)
_WRITABLE = re.compile(r"^binlog_pump_storage_writable ([\d.]+)$", re.MULTILINE)


def due_notices(
    settings: Settings, max_lag_ms: float, report: TaskReport | None = None
) -> list[Notice]:
    """Return the notices that the caller has to send now; one with `over_ms` has ended.

    `max_lag_ms`: the lag from which on people are notified; `report`: what a task met, if one asks.
    Raises RelayError, OSError.
    """
    notices = Notices(settings.open_relay().place)
    known = notices.load()
    seen = overview(settings, _PATIENCE_S)
    disks = _disks(settings, seen) if report is None else None  # which takes longer
    causes = find_causes(seen, max_lag_ms=max_lag_ms, known=known, disks=disks, report=report)
    return notices.take(causes.found.values(), causes.has_ended)


def mark_sent(settings: Settings, keys: Collection[str]) -> None:
    """Record that the messages of these notices were sent. Raises RelayError, OSError."""
    Notices(settings.open_relay().place).sent(keys)


def _disks(settings: Settings, seen: Overview) -> Disks:
    sizes = None if "archive" in seen.errors else latest_sizes(settings)
    pumps = tuple(_pump_disks(settings, seen))
    if sizes is None:
        return Disks(pumps=pumps)
    return Disks(sizes.free_bytes, sizes.full_in_days, pumps)


def _pump_disks(settings: Settings, seen: Overview) -> Iterator[PumpDisk]:
    pumps = [pump for pump in seen.pumps if pump.registry_state != "offline"]
    if not pumps:
        return
    tls = settings.upstream.tls()
    with ThreadPoolExecutor(min(len(pumps), _MAX_ASKED_AT_ONCE)) as pool:
        texts = pool.map(lambda pump: read_text(pump.host, "/metrics", tls, _PUMP_TIMEOUT_S), pumps)
        for pump, text in zip(pumps, texts, strict=True):
            free, writable = _FREE.search(text), _WRITABLE.search(text)
            if free is not None:
                is_writable = writable is None or float(writable[1]) > 0  # original ones have none
                yield PumpDisk(pump.node_id, float(free[1]), is_writable)
