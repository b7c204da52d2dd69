"""What an archive holds, as far as it is there: stretches of its chain, and the holes between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relay import RelayCorruptError
from relay.archive import Archive, Volume, day_of
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
    """The volumes of an archive in order, and its holes."""

    volumes: tuple[Volume, ...]
    holes: tuple[Hole, ...]

    @property
    def unbroken(self) -> tuple[Volume, ...]:
        """The volumes behind the last hole."""
        after = max((hole.hi for hole in self.holes), default=0)
        return tuple(volume for volume in self.volumes if volume.lo >= after)


def read_contents(archive: Archive) -> Contents:
    """Look through the whole catalogue, and whether the files of the log are there in their length. What is damaged is
    a hole, never an error. Raises OSError.
    """
    holes: list[Hole] = []
    volumes: list[Volume] = []
    for volume in _listed(archive, holes):
        if volumes and volumes[-1].hi < volume.lo and not any(hole.hi == volume.lo for hole in holes):
            why = f"{archive.url}/days: no volume begins at {volumes[-1].hi}, but one at {volume.lo}"
            holes.append(Hole(volumes[-1].hi, volume.lo, why))
        volumes.append(volume)
    holes += _missing(archive.storage, volumes)
    return Contents(tuple(volumes), tuple(sorted(holes, key=lambda hole: hole.lo)))


def _listed(archive: Archive, holes: list[Hole]) -> Iterator[Volume]:
    """The volumes that the catalogue names; `holes` gets what can't be read of it."""
    at: int | None = None
    unread = ""
    for name in archive.catalogue.days():
        try:
            day = archive.catalogue.load(name)
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
        yield from day.volumes
        at = day.volumes[-1].hi
    if unread:
        holes.append(Hole(at or 0, max(at or 0, tso.wall_clock()), unread))


def _begin(follows: int | None, first: Volume) -> int:
    """Where a hole at the beginning of all begins, as far as that is known."""
    return min(follows if follows is not None else 0, first.lo)


def _missing(storage: Storage, volumes: list[Volume]) -> Iterator[Hole]:
    sizes: dict[str, Mapping[str, int]] = {}
    for volume in volumes:
        for file in (volume.index, *((volume.log,) if volume.log else ())):
            folder, _, name = file.path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.sizes(folder)
            found = sizes[folder].get(name)
            if found != file.bytes:
                what = "is missing" if found is None else f"has {found:,} bytes, not {file.bytes:,}"
                yield Hole(volume.lo, volume.hi, f"{storage.url}/{file.path} {what} (volume of {day_of(volume.lo)})")
