"""The catalogue of an archive: a document for each UTC day on which volumes begin.

`days/<YYYY-MM-DD>/<number>.json`; the newest number counts, and is created exclusively (`relay.numbered`), so of two
processes that change a day one begins anew. A document is a sealed JSON object (`relay.sealed`):

    {"format": 1, "day", "token": of this change,
     "follows": where the volume before the day's first one ends (TSO), null if the archive begins here,
     "volumes": [Volume, …]     ascending, each beginning where the one before ends
     "compacting": token of whoever may put merged volumes in the place of others, "" if nobody may
     "old": [{"path", "bytes", "since_ms"}, …]     files that no volume has any longer, until they are removed}

The chain goes on from day to day: the first volume of a day begins where the last one of the day before ends.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from relay.archive.volume import Volume, as_json, checked
from relay.numbered import Form, Numbered
from relay.sealed import seal, unseal
from relay.storage import Storage

__all__ = ["Catalogue", "Day", "OldFile", "RememberedCatalogue"]

_FORMAT = 1
_FOLDER = "days"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_KEPT = 4
_DAY: dict[str, type | tuple[type, ...]] = {
    "day": str, "token": str, "follows": (int, type(None)), "volumes": list, "compacting": str,
    "old": list,
}  # fmt: skip
_OLD: dict[str, type | tuple[type, ...]] = {"path": str, "bytes": int, "since_ms": int}


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file that has been replaced at `since_ms` (Unix ms); who began to read before may read it still."""

    path: str
    bytes: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Day:
    """What the catalogue has of a day."""

    day: str
    token: str = ""
    follows: int | None = None
    volumes: tuple[Volume, ...] = ()
    compacting: str = ""
    old: tuple[OldFile, ...] = ()

    def changed(self, **fields: Any) -> Day:
        """With other fields, under a token of its own."""
        return replace(self, token=secrets.token_hex(8), **fields)

    def to_bytes(self) -> bytes:
        """The document."""
        return seal(
            {
                "format": _FORMAT,
                **as_json(self),
                "volumes": [volume.to_json() for volume in self.volumes],
                "old": [as_json(file) for file in self.old],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Day:
        """The inverse of `to_bytes`. Strict: raises ValueError."""
        raw = checked("a day of the catalogue", unseal(data, _FORMAT), _DAY)
        volumes = tuple(Volume.from_json(volume) for volume in raw["volumes"])
        for before, volume in itertools.pairwise(volumes):
            if before.hi != volume.lo:
                raise ValueError(f"a volume ends at {before.hi}, and the next one begins at {volume.lo}")
        old = tuple(OldFile(**checked("an old file", file, _OLD)) for file in raw["old"])
        return cls(**raw | {"volumes": volumes, "old": old})


class Catalogue:
    """The days of an archive."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def days(self) -> list[str]:
        """Those that have a folder, ascending; one may hold nothing."""
        return [name for name in self._storage.names(_FOLDER) if _NAME.match(name)]

    def load(self, day: str) -> Day:
        """What there is of a day. Raises RelayCorruptError."""
        return self._document(day).load()

    def text(self, day: str) -> bytes | None:
        """What there is of a day as its file says it, None if nothing is."""
        return self._document(day).text()[1]

    def change(self, day: str, change: Callable[[Day], Day]) -> Day:
        """Put what `change` makes of a day in its place, by compare-and-set: it may be called several times."""
        return self._document(day).change(change)

    def forget(self, day: str) -> None:
        """Remove a day that holds no volumes and no old files any more."""
        folder = path_of(day)
        for name in self._storage.names(folder):
            self._storage.remove(f"{folder}/{name}")
        self._storage.remove_empty_directory(folder)

    def _document(self, day: str) -> Numbered[Day]:
        way_out = (
            "restore the file from a copy; or remove it, if a file with a smaller number is beside it: what that says"
            " is what was before the last change, and the archive goes on from there"
        )
        form = Form(text=Day.to_bytes, parse=_parser(day), first=lambda: Day(day), way_out=way_out)
        return Numbered(self._storage, path_of(day), form, kept=_KEPT)


class RememberedCatalogue(Catalogue):
    """A catalogue of which a reader keeps what it has seen: each day as it was when first looked at, without the lake's
    files.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._names: list[str] | None = None
        self._seen: dict[str, Day] = {}

    def days(self) -> list[str]:
        if self._names is None:
            self._names = super().days()
        return self._names

    def load(self, day: str) -> Day:
        if day not in self._seen:
            found = super().load(day)
            volumes = tuple(replace(volume, lake=()) for volume in found.volumes)
            self._seen[day] = replace(found, volumes=volumes, old=())
        return self._seen[day]

    def renew(self) -> None:
        """See what has been appended: the newest day that was seen, and those behind it."""
        self._names = None
        if self._seen:
            del self._seen[max(self._seen)]

    def forget_seen(self) -> None:
        """See everything as it is now."""
        self._names = None
        self._seen = {}


def _parser(day: str) -> Callable[[bytes], Day]:
    def parse(data: bytes) -> Day:
        found = Day.from_bytes(data)
        if found.day != day:
            raise ValueError(f"it is about {found.day}")
        return found

    return parse


def path_of(day: str) -> str:
    """The folder of a day."""
    return f"{_FOLDER}/{day}"
