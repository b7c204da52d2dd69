"""What an archive holds, as far as it is there: stretches of its chain, and the holes between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from etl.retain.known import KnownDay, KnownVolume
from relay import RelayCorruptError
from relay.archive import Archive, day_of
from relay.storage import Storage
from upstream import tso

__all__ = ["Contents", "Hole", "read_contents"]


@dataclass(frozen=True, slots=True)
class Hole:
    """What was committed in `(lo, hi]` (TSO) can't be had from the archive; `why`, with the place."""

    lo: int
    hi: int
    why: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The days of an archive that have volumes, in order, and its holes."""

    days: tuple[KnownDay, ...]
    holes: tuple[Hole, ...]

    @property
    def volumes(self) -> tuple[KnownVolume, ...]:
        """All of them, in order."""
        return tuple(volume for day in self.days for volume in day.volumes)

    @property
    def unbroken(self) -> tuple[KnownVolume, ...]:
        """The volumes behind the last hole."""
        after = max((hole.hi for hole in self.holes), default=0)
        return tuple(volume for volume in self.volumes if volume.lo >= after)


def read_contents(archive: Archive, load: Callable[[str], KnownDay]) -> Contents:
    """Look through the whole catalogue, of which `load` tells a day, and whether the files of the log are there in
    their length. What is damaged is a hole, never an error. Raises OSError.
    """
    holes: list[Hole] = []
    days = tuple(_listed(archive, load, holes))
    volumes = [volume for day in days for volume in day.volumes]
    known = {hole.hi for hole in holes}
    for before, volume in itertools.pairwise(volumes):
        if before.hi < volume.lo and volume.lo not in known:
            why = f"{archive.url}/days: no volume begins at {before.hi}, but one at {volume.lo}"
            holes.append(Hole(before.hi, volume.lo, why))
    holes += _missing(archive.storage, volumes)
    return Contents(days, tuple(sorted(holes, key=lambda hole: hole.lo)))


def _listed(archive: Archive, load: Callable[[str], KnownDay], holes: list[Hole]) -> Iterator[KnownDay]:
    """The days that the catalogue names; `holes` gets what can't be read of it."""
    at: int | None = None
    unread = ""
    for name in archive.catalogue.days():
        try:
            day = load(name)
        except RelayCorruptError as error:
            unread = str(error)
            continue
        if not day.volumes:
            continue
        first = day.volumes[0]
        if unread or (at is None and day.follows is not None):
            why = unread or f"{archive.url}/days: what is before {day.day} is missing"
            holes.append(Hole(at if at is not None else _begin(day.follows, first), first.lo, why))
            unread = ""
        yield day
        at = day.volumes[-1].hi
    if unread:
        holes.append(Hole(at or 0, max(at or 0, tso.wall_clock()), unread))


def _begin(follows: int | None, first: KnownVolume) -> int:
    """Where a hole at the beginning of all begins, as far as that is known."""
    return min(follows if follows is not None else 0, first.lo)


def _missing(storage: Storage, volumes: Iterable[KnownVolume]) -> Iterator[Hole]:
    sizes: dict[str, Mapping[str, int]] = {}
    for volume in volumes:
        for path, size in volume.files:
            folder, _, name = path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.sizes(folder)
            found = sizes[folder].get(name)
            if found != size:
                what = "is missing" if found is None else f"has {found:,} bytes, not {size:,}"
                yield Hole(volume.lo, volume.hi, f"{storage.url}/{path} {what} (volume of {day_of(volume.lo)})")
