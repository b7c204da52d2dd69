"""Pins of the archive's readers, and the mark of what is being removed from it.

So nothing is removed while a process reads it.

    <archive>/pins/<name>.json      {"what", "from_ts", "snapshots", "job", "archive_ts"}:
                                     a pin of snapshots, and of the chain from a TSO on
    <archive>/removal-mark/<number>.json    {"before_ts", "snapshots", "token"}:
                                     the removal mark: what is being removed, or was

A reader first writes its pin and then reads the removal mark. A process that removes first raises
the mark and then lists the pins, some seconds later where lists lag. So one of the two sees the
other. The mark never goes down: what lies below it is gone, though its files may still exist. A pin
of a job counts until the job is over. Any other counts until the archive has grown by two days, in
the upstream's time, since it was written: then its process is dead.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import sleep
from typing import ClassVar

from sluice.relay.archive.archive import Archive
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument
from sluice.tidb import tso

__all__ = ["Pin", "Pins", "RemovalMark", "RemovedError"]

_FOLDER = "pins"
_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAX_MARK_VERSIONS = 8
DEAD_AFTER_MS = 2 * 86_400_000
LISTED_AFTER_S = 10.0
"""A list that lags knows by then of what was there."""


class RemovedError(RelayError):
    """The data that a caller wants to read has been removed, or is being removed."""

    hint = "`sluice archive status` shows the recovery window; take a moment inside of it"


@dataclass(frozen=True, slots=True)
class Pin(JsonDocument):
    """A reader's pin of `snapshots` (snapshots), and of the chain from `from_ts` (TSO) on.

    `what` names the reader for people; `job` is its id, if it is a job; `archive_ts` (TSO) is where
    the archive ended when the pin was created, 0: `Pins.note` finds out.
    """

    JSON_NAME: ClassVar = "the hold"
    JSON_COMPLETE: ClassVar = True

    what: str
    from_ts: int
    snapshots: tuple[str, ...] = ()
    job: str = ""
    archive_ts: int = 0


@dataclass(frozen=True, slots=True)
class RemovalMark(JsonDocument):
    """The data that is gone, or going: the chain through `before_ts` (TSO), and `snapshots`."""

    JSON_NAME: ClassVar = "what is gone from the archive (floor)"
    JSON_COMPLETE: ClassVar = True

    before_ts: int = 0
    snapshots: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(6))


class Pins:
    """The holds of an archive. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._removal_mark = VersionedDocument(
            storage, "removal-mark", _DOCUMENT_FORMAT, kept=_MAX_MARK_VERSIONS
        )

    def note(self, name: str, hold: Pin) -> None:
        """Pin what `hold` names, until `forget`.

        `name`: letters, digits, - and _. Raises RemovedError if some of it is gone; nothing is
        noted then.
        """
        if not _NAME.match(name):
            raise RelayError(
                f"invalid name {name!r} of a pin",
                hint="use letters, digits, - and _ only",
            )
        if not hold.archive_ts:
            last = Archive(self._storage).last()
            hold = replace(hold, archive_ts=last.hi if last is not None else hold.from_ts)
        self._storage.replace(_path(name), hold.to_bytes())
        floor = self.removal_mark()
        going = sorted(set(hold.snapshots) & set(floor.snapshots))
        if hold.from_ts < floor.before_ts or going:
            self.forget(name)
            what = (
                f"the snapshot {going[0]}"
                if going
                else f"what was committed through {tso.text(floor.before_ts)}"
            )
            raise RemovedError(
                f"{self._storage.url}: {what} is removed, by the rules in [archive]; {hold.what}"
                " needs it"
            )

    def forget(self, name: str) -> None:
        """Remove a pin: its reader is done."""
        self._storage.remove(_path(name))

    @contextlib.contextmanager
    def held(self, name: str, hold: Pin) -> Iterator[None]:
        """Pin as `note` does, while the context lasts."""
        self.note(name, hold)
        try:
            yield
        finally:
            self.forget(name)

    def all(self) -> dict[str, Pin]:
        """Return every pin by name, also of processes that ended.

        Raises RelayCorruptError for one that can't be read.
        """
        found: dict[str, Pin] = {}
        for file in self._storage.names(_FOLDER):
            path = f"{_FOLDER}/{file}"
            with contextlib.suppress(FileNotFoundError):
                try:
                    found[file.removesuffix(".json")] = Pin.from_bytes(self._storage.read(path))
                except ValueError as error:
                    raise RelayCorruptError(
                        f"{self._storage.url}/{path}: {error}: nothing is removed from the"
                        " archive while it can't be read",
                        hint="remove the file if nothing reads the archive",
                    ) from None
        return found

    def removal_mark(self) -> RemovalMark:
        """Return the removal mark."""
        return self._removal_mark.load()

    def advance_removal(
        self, before_ts: int, snapshots: tuple[str, ...], gone: tuple[str, ...] = ()
    ) -> RemovalMark:
        """Raise the removal mark: no new reader gets the chain through `before_ts`, or `snapshots`.

        On return `all` lists every reader that began before, which takes a while where lists lag.
        The snapshots `gone` are removed entirely, so the mark leaves them out.
        """

        def raised(floor: RemovalMark) -> RemovalMark:
            named = tuple(sorted(set(floor.snapshots) - set(gone) | set(snapshots)))
            through = max(floor.before_ts, before_ts)
            if (through, named) == (floor.before_ts, floor.snapshots):
                return floor
            return replace(floor, before_ts=through, snapshots=named, token=secrets.token_hex(6))

        after = self._removal_mark.change(raised)
        if (before_ts or snapshots) and self._storage.lists_may_lag:
            sleep(LISTED_AFTER_S)
        return after


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}.json"


_DOCUMENT_FORMAT = DocumentFormat(
    RemovalMark.to_bytes,
    RemovalMark.from_bytes,
    lambda: RemovalMark(token=""),
    hint="restore the file from a copy",
)
