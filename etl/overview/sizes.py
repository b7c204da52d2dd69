"""How much is where, and what the archive holds: many files are looked at for it, so it is looked up in the background,
once a minute at most.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from etl.retain import archive_status
from etl.settings import Settings

__all__ = ["Sizes", "newest_sizes"]

_FRESH_S = 60.0
_FIRST_S = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the relay log and of the archive with its bases; the archive's ends, and from where on it can be
    restored, as TSO, 0 where there is nothing. `faults` of the archive, `free_bytes` of the disk with the least room,
    None without one.
    """

    relay_bytes: int
    archive_bytes: int
    url: str
    lo: int
    hi: int
    promised_ts: int
    bases: int
    faults: tuple[str, ...]
    free_bytes: int | None
    full_in_days: float | None
    holes: int = 0


class _Looked:
    """What was seen last of one pipeline, and who looks now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = 0.0
        self._found: Sizes | Exception | None = None

    def newest(self) -> Sizes | None:
        with self._lock:
            is_first = self._thread is None
            if time.monotonic() >= self._due and (self._thread is None or not self._thread.is_alive()):
                self._due = time.monotonic() + _FRESH_S
                self._thread = threading.Thread(target=self._look, name="overview-sizes", daemon=True)
                self._thread.start()
            thread = self._thread
        if is_first and thread is not None:
            thread.join(_FIRST_S)
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _look(self) -> None:
        try:
            self._found = _sizes(self._settings)
        except Exception as error:
            self._found = error


def _sizes(settings: Settings) -> Sizes:
    found = archive_status(settings)
    disks = sorted(found.disks, key=lambda disk: disk.free_bytes)
    full = [disk.full_in_days for disk in disks if disk.full_in_days is not None]
    return Sizes(
        found.spaces["relay"].bytes,
        sum(space.bytes for name, space in found.spaces.items() if name != "relay"),
        found.url,
        found.lo,
        found.hi,
        found.promised_ts,
        len(found.bases),
        found.faults,
        disks[0].free_bytes if disks else None,
        min(full, default=None),
        len(found.holes),
    )


_looked: dict[tuple[str, str], _Looked] = {}


def newest_sizes(settings: Settings) -> Sizes | None:
    """What was seen last; None while the first look takes longer than a moment. Raises what looking raised: RelayError,
    OSError.
    """
    key = settings.relay.url, settings.archive_url
    return _looked.setdefault(key, _Looked(settings)).newest()
