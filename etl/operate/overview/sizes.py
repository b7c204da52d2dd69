"""Measure storage sizes and the archive's content in the background, once a minute at most.

Many files are listed for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.etl.cached_value import CachedValue
from sluice.etl.history.retain import archive_status
from sluice.etl.settings import Settings

__all__ = ["StorageSizes", "latest_sizes"]

_CACHE_TTL_S = 60.0
_FIRST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class StorageSizes:
    """Bytes of the relay log and of the archive with its snapshots.

    The archive's ends, and from where on it can be restored, as TSO, 0 where there is nothing;
    `unrestorable`: the tables that prevent it now.
    `faults` of the archive, `free_bytes` of the disk with the least room, None without one.
    """

    relay_bytes: int
    archive_bytes: int
    url: str
    lo: int
    hi: int
    promised_ts: int
    snapshots: int
    faults: tuple[str, ...]
    free_bytes: int | None
    full_in_days: float | None
    holes: int = 0
    unrestorable: tuple[str, ...] = ()


def _measure_sizes(settings: Settings) -> StorageSizes:
    found = archive_status(settings)
    disks = sorted(found.disks, key=lambda disk: disk.free_bytes)
    full = [disk.full_in_days for disk in disks if disk.full_in_days is not None]
    return StorageSizes(
        found.spaces["relay"].bytes,
        sum(space.bytes for name, space in found.spaces.items() if name != "relay"),
        found.url,
        found.lo,
        found.hi,
        found.promised_ts,
        len(found.snapshots),
        found.faults,
        disks[0].free_bytes if disks else None,
        min(full, default=None),
        len(found.holes),
        tuple(table.name for table in found.unknown),
    )


_cached_sizes: dict[tuple[str, str], CachedValue[StorageSizes]] = {}


def latest_sizes(settings: Settings) -> StorageSizes | None:
    """Return the last sizes; None while the first measurement takes longer than `_FIRST_WAIT_S`.

    Raises the errors of measuring: RelayError, OSError.
    """
    key = settings.relay.url, settings.archive_url
    cached = _cached_sizes.setdefault(key, CachedValue())
    return cached.latest(lambda: _measure_sizes(settings), _CACHE_TTL_S, _FIRST_WAIT_S)
