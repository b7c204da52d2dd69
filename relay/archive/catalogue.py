"""The catalogue of an archive: a document for each UTC day on which segments begin.

`days/<YYYY-MM-DD>/<number>.json`; the newest number counts, and is created exclusively
(`sluice.relay.versioned_document`), so of two processes that change a day one has to start over. A
document is a sealed JSON object (`sluice.relay.checksummed`):

    {"format": 1, "day", "token": of this change,
     "follows": where the segment before the day's first one ends (TSO),
                null if the archive begins here,
     "segments": [ArchiveSegment, …]     ascending, each beginning where the one before ends
     "compacting": token of the process that may replace segments by merged ones, "" for none
     "old": [{"path", "bytes", "since_ms"}, …]     files of no segment, until they are removed}

The chain goes on from day to day: the first segment of a day begins where the last one of the day
before ends.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sluice.relay.archive.segment import ArchiveSegment
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["CachedCatalogue", "Catalogue", "CatalogueDay", "ReplacedFile"]

_FORMAT = 1
_FOLDER = "days"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_MAX_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that was replaced at `since_ms` (Unix ms).

    A reader that began before may still read it.
    """

    path: str
    bytes: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class CatalogueDay(JsonDocument):
    """A day's entry in the catalogue."""

    JSON_NAME: ClassVar = "a day of the catalogue"
    JSON_COMPLETE: ClassVar = True

    day: str
    token: str = ""
    follows: int | None = None
    segments: tuple[ArchiveSegment, ...] = ()
    compacting: str = ""
    old: tuple[ReplacedFile, ...] = ()

    def changed(self, **fields: Any) -> CatalogueDay:
        """Return the day with other fields, under a new token."""
        return replace(self, token=secrets.token_hex(8), **fields)

    def to_bytes(self) -> bytes:
        """Return the document's text."""
        return encode_checksummed({"format": _FORMAT, **self.to_json()})

    @classmethod
    def from_bytes(cls, data: bytes) -> CatalogueDay:
        """Parse what `to_bytes` wrote. Strict: raises ValueError."""
        found = cls.from_json(decode_checksummed(data, _FORMAT))
        for before, segment in itertools.pairwise(found.segments):
            if before.hi != segment.lo:
                raise ValueError(
                    f"a segment ends at {before.hi}, and the next one begins at {segment.lo}"
                )
        return found


class Catalogue:
    """The days of an archive."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def days(self) -> list[str]:
        """Return the days that have a folder, ascending; one may hold nothing."""
        return [name for name in self._storage.names(_FOLDER) if _NAME.match(name)]

    def load(self, day: str) -> CatalogueDay:
        """Return a day's entry. Raises RelayCorruptError."""
        return self._document(day).load()

    def text(self, day: str) -> bytes | None:
        """Return a day's document as its file has it, None if there is none."""
        return self._document(day).text()[1]

    def change(self, day: str, change: Callable[[CatalogueDay], CatalogueDay]) -> CatalogueDay:
        """Replace a day's entry by what `change` returns for it, with compare-and-set.

        `change` may be called several times.
        """
        return self._document(day).change(change)

    def forget(self, day: str) -> None:
        """Remove a day that holds no segments and no old files any more."""
        folder = path_of(day)
        for name in self._storage.names(folder):
            self._storage.remove(f"{folder}/{name}")
        self._storage.remove_empty_directory(folder)

    def _document(self, day: str) -> VersionedDocument[CatalogueDay]:
        hint = (
            "restore the file from a copy; or remove it, if a file with a smaller number is beside"
            " it: that has the state before the last change, and the archive goes on from there"
        )
        form = DocumentFormat(
            text=CatalogueDay.to_bytes,
            parse=_parser(day),
            first=lambda: CatalogueDay(day),
            hint=hint,
        )
        return VersionedDocument(self._storage, path_of(day), form, kept=_MAX_VERSIONS)


class CachedCatalogue(Catalogue):
    """A catalogue that caches each day as it was when it was first read.

    The lake's files are left out.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._names: list[str] | None = None
        self._cached: dict[str, CatalogueDay] = {}

    def days(self) -> list[str]:
        if self._names is None:
            self._names = super().days()
        return self._names

    def load(self, day: str) -> CatalogueDay:
        if day not in self._cached:
            found = super().load(day)
            segments = tuple(replace(segment, lake=()) for segment in found.segments)
            self._cached[day] = replace(found, segments=segments, old=())
        return self._cached[day]

    def refresh(self) -> None:
        """See what has been appended: the newest day that was seen, and those behind it."""
        self._names = None
        if self._cached:
            del self._cached[max(self._cached)]

    def clear(self) -> None:
        """See everything as it is now."""
        self._names = None
        self._cached = {}


def _parser(day: str) -> Callable[[bytes], CatalogueDay]:
    def parse(data: bytes) -> CatalogueDay:
        found = CatalogueDay.from_bytes(data)
        if found.day != day:
            raise ValueError(f"it is about {found.day}")
        return found

    return parse


def path_of(day: str) -> str:
    """Return the folder of a day."""
    return f"{_FOLDER}/{day}"
