"""Track archive segments that are being made, and remove what killed or late makers leave.

    <archive>/attempts/<token>.json    {"lo", "hi", "token", "begun_ms", "compacts"}

The entry is written before the first file of a segment, and removed when the archive's catalogue
names the segment. Files of an abandoned one are removed when no catalogue can name them any more:
the archive has gone past it, or another compaction of that day has begun.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sluice.relay.archive import Archive, day_of
from sluice.relay.archive.catalogue import CatalogueDay
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage

__all__ = ["PendingSegment", "PendingSegments", "remove_abandoned"]

log = logging.getLogger("sluice.archive")

_FOLDER = "attempts"
_NAME = re.compile(r"\d{20}-\d{20}-([0-9a-f]+)\b")
_ABANDONED_AFTER_MS = 3_600_000
"""A worker whose driver is gone may write on for this long."""


@dataclass(frozen=True, slots=True)
class PendingSegment(JsonDocument):
    """The range (lo, hi] (TSO) of the segment; `begun_ms`: Unix ms."""

    JSON_COMPLETE: ClassVar = True

    lo: int
    hi: int
    token: str
    """Begins the token in the names of its files."""
    begun_ms: int
    compacts: bool
    """True if it is to replace existing segments."""


class PendingSegments:
    """The notes about segments in the making, in an archive's storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def begin(self, lo: int, hi: int, *, compacts: bool = False) -> str:
        """Note durably that a segment is begun; return its token, unique among segments.

        Raises OSError.
        """
        token = secrets.token_hex(8)
        attempt = PendingSegment(lo, hi, token, time.time_ns() // 1_000_000, compacts)
        self._storage.create(_path(token), attempt.to_bytes())
        return token

    def over(self, token: str) -> None:
        """Forget an attempt. Raises OSError."""
        self._storage.remove(_path(token))

    def list(self) -> list[PendingSegment]:
        """Return the noted attempts.

        One that can't be read is passed over: it only keeps files. Raises OSError.
        """
        found = []
        for name in self._storage.names(_FOLDER):
            try:
                found.append(
                    PendingSegment.from_json(json.loads(self._storage.read(f"{_FOLDER}/{name}")))
                )
            except FileNotFoundError:
                continue
            except ValueError as error:
                log.warning(
                    "%s/%s/%s: %r; the files that it names are kept",
                    self._storage.url,
                    _FOLDER,
                    name,
                    error,
                )
        return found


def remove_abandoned(
    archive: Archive, stop: Callable[[], bool], given_up_ms: int = _ABANDONED_AFTER_MS
) -> int:
    """Remove files of attempts that can't enter the archive any more, even if their maker wakes up.

    Returns the number of files. An attempt is forgotten `given_up_ms` after it began, when no
    worker of it writes any more. Raises relay errors, OSError.
    """
    attempts = PendingSegments(archive.storage)
    last = archive.last()
    late: list[PendingSegment] = []
    known: set[str] = set()
    removed = 0
    for attempt in attempts.list() if last is not None else ():
        assert last is not None
        day = archive.catalogue.load(day_of(attempt.lo))
        if any(segment.token == attempt.token for segment in day.segments):
            removed += _remove_superseded(archive.storage, day)
            attempts.over(attempt.token)
        elif day.compacting != attempt.token if attempt.compacts else attempt.lo < last.hi:
            late.append(attempt)
            known.update(file.path for segment in day.segments for file in segment.files)
            known.update(file.path for file in day.old)
    if not late or stop():
        return removed
    before = time.time_ns() // 1_000_000 - given_up_ms
    over = [attempt for attempt in late if attempt.begun_ms <= before]
    removed += _remove(archive.storage, late, known, given_up_ms / 1000 if over else None)
    for attempt in over:
        attempts.over(attempt.token)
    return removed


def _remove_superseded(storage: Storage, day: CatalogueDay) -> int:
    """Remove the lake's files that segments of a day no longer have; how many.

    People read whole folders.
    """
    gone = [file.path for file in day.old if file.path.startswith("lake/")]
    for path in gone:
        storage.remove(path)
    return len(gone)


def _remove(
    storage: Storage, late: Sequence[PendingSegment], known: set[str], unfinished_s: float | None
) -> int:
    """Remove the files of attempts that aren't `known`, and unfinished ones that are so old.

    How many.
    """
    tokens = {attempt.token for attempt in late}
    removed = 0
    for folder in _folders(storage, late):
        for name in storage.names(folder):
            match = _NAME.match(name)
            if match and match[1] in tokens and f"{folder}/{name}" not in known:
                storage.remove(f"{folder}/{name}")
                removed += 1
        if unfinished_s is not None:
            removed += storage.sweep(folder, unfinished_s)
        storage.remove_empty_directory(folder)
    return removed


def _folders(storage: Storage, late: Sequence[PendingSegment]) -> Iterator[str]:
    """Yield the folders in which the attempts' workers write."""
    yield from sorted({f"log/{day_of(attempt.lo)}" for attempt in late})
    first = f"day={min(day_of(attempt.lo) for attempt in late)}"
    last = f"day={max(day_of(attempt.hi) for attempt in late)}"
    for table in storage.names("lake"):
        for version in storage.names(f"lake/{table}"):
            for name in storage.names(f"lake/{table}/{version}"):
                if first <= name <= last:
                    yield f"lake/{table}/{version}/{name}"


def _path(token: str) -> str:
    return f"{_FOLDER}/{token}.json"
