"""Keep summaries of days, snapshots and the relay log's hours beside them.

So a status report need not read hundreds of thousands of files.

    <archive>/summaries/days/<YYYY-MM-DD>.json          `DaySummary` of
                                                        `sluice.etl.history.retain.catalogue_summary`
    <archive>/summaries/snapshots/<snapshot id>.json    its `SnapshotSummary`
    <relay log>/summaries/hours.json                    `hours`: bytes of the window records and
                                                        the parts of each hour that is over;
                                                        `ends`: of the first and the last one, with
                                                        the names that they are of

The DAG `archive` writes them, when it has archived, compacted and removed. Each names the bytes of
the document that it was made of, by length and CRC-32C, and is believed only while these are what
is there; what is damaged, older or missing is passed over, and the documents themselves are read.
Nothing is ever removed in reliance on a summary.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeVar

import google_crc32c

from sluice.etl.history.retain.catalogue_summary import DaySummary, SnapshotSummary
from sluice.etl.history.retain.facts import events_between
from sluice.etl.history.retain.table_events import TableEvent
from sluice.relay import RelayCorruptError, RelayError, RelayLog
from sluice.relay.archive import Archive, Pins, SnapshotStore
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.storage import Storage

__all__ = [
    "CachedSummaries",
    "DirectSummaries",
    "HourSizes",
    "readable_snapshots",
    "refresh_summaries",
]

log = logging.getLogger("sluice.archive")

_FORMAT = 2
_FOLDER = "summaries"
_HOURS = f"{_FOLDER}/hours.json"

T = TypeVar("T")


class DirectSummaries:
    """Summaries computed from the documents themselves."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._snapshots = SnapshotStore(archive.storage)

    def day(self, name: str) -> DaySummary:
        """Summarize a day of the catalogue."""
        return DaySummary.from_day(self._archive.catalogue.load(name))

    def snapshot(self, name: str) -> SnapshotSummary | None:
        """None if there is none, or none yet."""
        found = self._snapshots.find(name)
        return SnapshotSummary.from_snapshot(found) if found is not None else None


class CachedSummaries:
    """Summaries read from their files, and from the documents where a file is wrong."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._storage = archive.storage
        self._snapshots = SnapshotStore(archive.storage)
        self._direct = DirectSummaries(archive)

    def day(self, name: str) -> DaySummary:
        """Return a day's summary, the cached one if it is up to date."""
        text = self._archive.catalogue.text(name)
        cached = self._load(_day_path(name), text, DaySummary.from_json)
        return cached or self._direct.day(name)

    def snapshot(self, name: str) -> SnapshotSummary | None:
        """None if there is none, or none yet."""
        cached = self._load(
            _snapshot_path(name), self._snapshots.text(name), SnapshotSummary.from_json
        )
        return cached or self._direct.snapshot(name)

    def refresh(self) -> None:
        """Write summaries that are missing or outdated; remove those of removed documents.

        What can't be read has none. Raises OSError.
        """
        version, days = -1, self._archive.catalogue.days()
        for name in days:
            with contextlib.suppress(RelayError):
                version = self._refresh_day(name, version)
        snapshots = []
        for name in self._snapshots.ids():
            with contextlib.suppress(RelayError):
                snapshots += [name] if self._refresh_snapshot(name) else []
        self._forget("days", days)
        self._forget("snapshots", snapshots)

    def _refresh_day(self, name: str, before: int) -> int:
        """Refresh a day; `before`: TiDB's schema version where it begins, -1 if it isn't known.

        Returns that where it ends.
        """
        text = self._archive.catalogue.text(name)
        if text is None:
            return before
        day = self._load(_day_path(name), text, DaySummary.from_json)
        if day is None:
            day = self._direct.day(name)
            self._save(
                _day_path(name),
                text,
                replace(day, turns=tuple(self._events(day, before))).to_json(),
            )
        return day.segments[-1].schema_version if day.segments else before

    def _events(self, day: DaySummary, before: int) -> Iterable[TableEvent]:
        """Return a day's table events; beyond the known ones only newer segments are read."""
        through, known = self._known_events(day)
        at = [segment.schema_version for segment in day.segments if segment.hi <= through]
        later = [segment for segment in day.segments if segment.hi > through]
        found = events_between(self._archive, later, at[-1] if at else before)
        return (*known, *(turn for turn in found if turn.ts > through))

    def _known_events(self, day: DaySummary) -> tuple[int, tuple[TableEvent, ...]]:
        """Through which moment (TSO) an older summary of the day has what DDL did.

        0 if there is none.
        """
        with contextlib.suppress(KeyError, ValueError, TypeError, IndexError):
            raw = self._read(_day_path(day.day)) or {}
            raw.pop("of", None)
            earlier = DaySummary.from_json(raw)
            begin, end = day.segments[0].lo, day.segments[-1].hi
            if earlier.segments[0].lo <= begin and earlier.segments[-1].hi <= end:
                return earlier.segments[-1].hi, tuple(
                    turn for turn in earlier.turns or () if turn.ts > begin
                )
        return 0, ()

    def _refresh_snapshot(self, name: str) -> bool:
        """Return whether there is such a snapshot."""
        text = self._snapshots.text(name)
        if text is None:
            return False
        if self._load(_snapshot_path(name), text, SnapshotSummary.from_json) is not None:
            return True
        found = self._direct.snapshot(name)
        if found is not None:
            self._save(_snapshot_path(name), text, found.to_json())
        return found is not None

    def _load(
        self, path: str, text: bytes | None, parse: Callable[[Mapping[str, Any]], T]
    ) -> T | None:
        raw = self._read(path) if text is not None else None
        if (
            raw is None
            or text is None
            or raw.pop("of", None) != [len(text), google_crc32c.value(text)]
        ):
            return None
        with contextlib.suppress(KeyError, ValueError, TypeError):
            return parse(raw)
        return None

    def _read(self, path: str) -> dict[str, Any] | None:
        return _read(self._storage, path)

    def _save(self, path: str, text: bytes, document: Mapping[str, Any]) -> None:
        of = [len(text), google_crc32c.value(text)]
        self._storage.replace(path, encode_checksummed({"format": _FORMAT, "of": of, **document}))

    def _forget(self, kind: str, left: Iterable[str]) -> None:
        there = {f"{name}.json" for name in left}
        for name in self._storage.names(f"{_FOLDER}/{kind}"):
            if name not in there:
                self._storage.remove(f"{_FOLDER}/{kind}/{name}")


@dataclass(frozen=True, slots=True)
class _FolderSize:
    """Bytes of the files of a folder through the name `last`.

    `names` is how many they are, `crc32c` the checksum of their names: files never change, so
    while both are those of the names that are there the bytes are, too.
    """

    last: str = ""
    names: int = 0
    crc32c: int = 0
    bytes: int = 0

    def with_files(self, names: Sequence[str], sizes: Mapping[str, int]) -> _FolderSize:
        """Return it with more files. `names`: those through `last`, `sizes`: of later ones."""
        there = [*names, *sorted(sizes)]
        return _FolderSize(
            there[-1] if there else "",
            len(there),
            _crc32c_of(there),
            self.bytes + sum(sizes.values()),
        )

    def holds_for(self, names: Sequence[str]) -> bool:
        """Return whether these are the names of the folder's files through `last`."""
        return (len(names), _crc32c_of(names)) == (self.names, self.crc32c)


_Hour = tuple[_FolderSize, _FolderSize]
"""Window records, and parts."""
_KINDS = ("windows", "parts")


class HourSizes:
    """Bytes of each hour of a relay log: (window records, parts).

    An hour between the first and the last one is over: nothing comes any more, and nothing goes
    before the first one does. Of other hours the names are listed. A file is looked at if it came
    since they were written down, and all of the folder's if one has gone.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def all(self) -> dict[str, tuple[int, int]]:
        """Return the sizes by hour. Raises OSError."""
        over, others = self._load()
        past = frozenset(self._past_hours())
        hours = sorted({name for kind in _KINDS for name in self._storage.names(kind)})
        return {
            hour: (over.get(hour) if hour in past else None)
            or _bytes_of(self._look(hour, others.get(hour)))
            for hour in hours
        }

    def refresh(self) -> None:
        """Write them down. Raises OSError."""
        over, others = self._load()
        hours = self._storage.names(_KINDS[0])
        past = self._past_hours()
        found = {
            hour: over.get(hour) or _bytes_of(self._look(hour, others.get(hour))) for hour in past
        }
        at_ends = {hour: self._look(hour, others.get(hour)) for hour in hours if hour not in found}
        if (found, at_ends) != (over, others):
            document = {
                "format": _FORMAT,
                "hours": {hour: list(sizes) for hour, sizes in found.items()},
                "ends": {
                    hour: [astuple(folder) for folder in folders]
                    for hour, folders in at_ends.items()
                },
            }
            self._storage.replace(_HOURS, encode_checksummed(document))

    def _past_hours(self) -> list[str]:
        return self._storage.names("windows")[1:-1]

    def _load(self) -> tuple[dict[str, tuple[int, int]], dict[str, _Hour]]:
        """Return the bytes of hours that are over, and what is known of the others."""
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            raw = _read(self._storage, _HOURS) or {}
            over = {
                str(hour): (int(records), int(parts))
                for hour, (records, parts) in raw["hours"].items()
            }
            others = {
                str(hour): (_folder_size(*records), _folder_size(*parts))
                for hour, (records, parts) in raw.get("ends", {}).items()
            }
            return over, others
        return {}, {}

    def _look(self, hour: str, known: _Hour | None) -> _Hour:
        records, parts = known or (_FolderSize(), _FolderSize())
        return (
            self._folder(f"{_KINDS[0]}/{hour}", records),
            self._folder(f"{_KINDS[1]}/{hour}", parts),
        )

    def _folder(self, path: str, known: _FolderSize) -> _FolderSize:
        if self._storage.is_remote:  # whose lists have sizes
            return _FolderSize().with_files([], self._storage.sizes(path))
        names = self._storage.names(path)
        before = names[: bisect.bisect_right(names, known.last)]
        if not known.holds_for(before):
            before, known = [], _FolderSize()
        if len(before) == len(names):
            return known
        return known.with_files(before, self._storage.sizes(path, known.last))


def refresh_summaries(relay: RelayLog, archive: Archive) -> None:
    """Refresh all summaries.

    Best effort: on failure, which is logged, readers fall back to the full documents.
    """
    try:
        CachedSummaries(archive).refresh()
        HourSizes(relay.storage).refresh()
    except (RelayError, OSError) as error:
        log.warning(
            "summaries of the archive were not written, so reading its status takes longer: %s",
            error,
        )


def readable_snapshots(
    find: Callable[[str], T | None], archive: Archive
) -> tuple[list[T], list[str]]:
    """Return the snapshots that exist and won't be removed now, as `find` loads them by name.

    With them the faults of others. Raises OSError.
    """
    found: list[T] = []
    faults: list[str] = []
    going = Pins(archive.storage).removal_mark().snapshots
    for name in SnapshotStore(archive.storage).ids():
        try:
            snapshot = find(name)
        except RelayCorruptError as error:
            faults.append(str(error))
            continue
        if snapshot is not None and name not in going:
            found.append(snapshot)
    return found, faults


def _read(storage: Storage, path: str) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError, ValueError, RelayError):
        return decode_checksummed(storage.read(path), _FORMAT)
    return None


def _folder_size(last: str, names: int, crc32c: int, size: int) -> _FolderSize:
    return _FolderSize(str(last), int(names), int(crc32c), int(size))


def _crc32c_of(names: Iterable[str]) -> int:
    return int(google_crc32c.value("/".join(names).encode()))


def _bytes_of(hour: _Hour) -> tuple[int, int]:
    records, parts = hour
    return records.bytes, parts.bytes


def _day_path(name: str) -> str:
    return f"{_FOLDER}/days/{name}.json"


def _snapshot_path(name: str) -> str:
    return f"{_FOLDER}/snapshots/{name}.json"
