"""The catalogue of an archive: a document for each UTC day on which volumes begin.

`days/<YYYY-MM-DD>/<number>.json`; the newest number counts, and is created exclusively
(`sluice.relay.versioned_document`), so of two processes that change a day one begins anew. A
document is a sealed JSON object (`sluice.relay.checksummed`):

    {"format": 1, "day", "token": of this change,
     "follows": where the volume before the day's first one ends (TSO), null if the archive begins here,
     "volumes": [Volume, …]     ascending, each beginning where the one before ends
     "compacting": token of whoever may put merged volumes in the place of others, "" if nobody may
     "old": [{"path", "bytes", "since_ms"}, …]     files that no volume has any longer, until they are removed}

The chain goes on from day to day: the first volume of a day begins where the last one of the day
before ends.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sluice.relay.archive.segment import ArchiveSegment, checked_fields, to_json_fields
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["CachedCatalogue", "Catalogue", "CatalogueDay", "ReplacedFile"]

_FORMAT = 1
_FOLDER = "days"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_MAX_VERSIONS = 4
_DAY_FIELDS: dict[str, type | tuple[type, ...]] = {
    "day": str, "token": str, "follows": (int, type(None)), "volumes": list, "compacting": str,
    "old": list,
}  # fmt: skip
_REPLACED_FIELDS: dict[str, type | tuple[type, ...]] = {"path": str, "bytes": int, "since_ms": int}


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that has been replaced at `since_ms` (Unix ms).

    Who began to read before may read it still.
    """

    path: str
    bytes: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class CatalogueDay:
    """What the catalogue has of a day."""

    day: str
    token: str = ""
    follows: int | None = None
    volumes: tuple[ArchiveSegment, ...] = ()
    compacting: str = ""
    old: tuple[ReplacedFile, ...] = ()

    def changed(self, **fields: Any) -> CatalogueDay:
        """With other fields, under a token of its own."""
        return replace(self, token=secrets.token_hex(8), **fields)

    def to_bytes(self) -> bytes:
        """The document."""
        return encode_checksummed(
            {
                "format": _FORMAT,
                **to_json_fields(self),
                "volumes": [volume.to_json() for volume in self.volumes],
                "old": [to_json_fields(file) for file in self.old],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> CatalogueDay:
        """The inverse of `to_bytes`. Strict: raises ValueError."""
        raw = checked_fields(
            "a day of the catalogue", decode_checksummed(data, _FORMAT), _DAY_FIELDS
        )
        volumes = tuple(ArchiveSegment.from_json(volume) for volume in raw["volumes"])
        for before, volume in itertools.pairwise(volumes):
            if before.hi != volume.lo:
                raise ValueError(
                    f"a volume ends at {before.hi}, and the next one begins at {volume.lo}"
                )
        old = tuple(
            ReplacedFile(**checked_fields("an old file", file, _REPLACED_FIELDS))
            for file in raw["old"]
        )
        return cls(**raw | {"volumes": volumes, "old": old})


class Catalogue:
    """The days of an archive."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def days(self) -> list[str]:
        """Those that have a folder, ascending; one may hold nothing."""
        return [name for name in self._storage.names(_FOLDER) if _NAME.match(name)]

    def load(self, day: str) -> CatalogueDay:
        """What there is of a day. Raises RelayCorruptError."""
        return self._document(day).load()

    def text(self, day: str) -> bytes | None:
        """What there is of a day as its file says it, None if nothing is."""
        return self._document(day).text()[1]

    def change(self, day: str, change: Callable[[CatalogueDay], CatalogueDay]) -> CatalogueDay:
        """Put what `change` makes of a day in its place, by compare-and-set: it may be called
        several times.
        """
        return self._document(day).change(change)

    def forget(self, day: str) -> None:
        """Remove a day that holds no volumes and no old files any more."""
        folder = path_of(day)
        for name in self._storage.names(folder):
            self._storage.remove(f"{folder}/{name}")
        self._storage.remove_empty_directory(folder)

    def _document(self, day: str) -> VersionedDocument[CatalogueDay]:
        way_out = (
            "restore the file from a copy; or remove it, if a file with a smaller number is beside"
            " it: what that says is what was before the last change, and the archive goes on from"
            " there"
        )
        form = DocumentFormat(
            text=CatalogueDay.to_bytes,
            parse=_parser(day),
            first=lambda: CatalogueDay(day),
            way_out=way_out,
        )
        return VersionedDocument(self._storage, path_of(day), form, kept=_MAX_VERSIONS)


class CachedCatalogue(Catalogue):
    """A catalogue of which a reader keeps what it has seen: each day as it was when first looked
    at, without the lake's files.
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
            volumes = tuple(replace(volume, lake=()) for volume in found.volumes)
            self._cached[day] = replace(found, volumes=volumes, old=())
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
    """The folder of a day."""
    return f"{_FOLDER}/{day}"
