"""Who reads the archive now, and what is being removed from it: so that nothing goes while somebody
reads it.

    <archive>/holds/<name>.json      {"what", "from_ts", "bases", "job", "archive_ts"}: bases, the chain from a TSO on
    <archive>/floor/<number>.json    {"before_ts", "bases", "token"}: what is being removed, or was

Who reads writes down a hold first and looks at the floor then; who removes raises the floor first
and looks at the holds then, where lists lag some seconds later. So one of the two sees the other.
The floor never goes down: what lies below it is gone, though it may still be there. A hold of a job
counts until the job is over; another one until the archive has grown by two days since it was
noted, in the upstream's time: it was left by a process that is dead.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from time import sleep
from typing import Any

from sluice.relay.archive.archive import Archive
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.format_version import parse_json
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument
from sluice.tidb import tso

__all__ = ["Pin", "Pins", "RemovalMark", "RemovedError"]

_FOLDER = "holds"
_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAX_MARK_VERSIONS = 8
DEAD_AFTER_MS = 2 * 86_400_000
LISTED_AFTER_S = 10.0
"""A list that lags knows by then of what was there."""


class RemovedError(RelayError):
    """What somebody wants to read has been removed, or is being removed."""

    way_out = "`sluice archive status` says from when on one can restore; take a moment after that"


@dataclass(frozen=True, slots=True)
class Pin:
    """Somebody reads `bases`, and the chain from `from_ts` (TSO) on.

    `what` it is, for people; `job` its id, if it is one; `archive_ts` (TSO) where the archive ended
    when this was noted, 0: `Pins.note` looks.
    """

    what: str
    from_ts: int
    bases: tuple[str, ...] = ()
    job: str = ""
    archive_ts: int = 0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Pin:
        """From what its file says. Raises KeyError, TypeError, ValueError."""
        return cls(
            str(document["what"]),
            int(document["from_ts"]),
            tuple(map(str, document["bases"])),
            str(document["job"]),
            int(document["archive_ts"]),
        )


@dataclass(frozen=True, slots=True)
class RemovalMark:
    """What is gone, or going: the chain through `before_ts` (TSO), and `bases`."""

    before_ts: int = 0
    bases: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(6))


class Pins:
    """The holds of an archive. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._removal_mark = VersionedDocument(
            storage, "floor", _DOCUMENT_FORMAT, kept=_MAX_MARK_VERSIONS
        )

    def note(self, name: str, hold: Pin) -> None:
        """Have nothing removed that `hold` names, until `forget`.

        `name`: letters, digits, - and _. Raises RemovedError if some of it is gone; nothing is
        noted then.
        """
        if not _NAME.match(name):
            raise RelayError(
                f"{name!r} can't be the name of a hold: letters, digits, - and _ can",
                way_out="rename it",
            )
        if not hold.archive_ts:
            last = Archive(self._storage).last()
            hold = replace(hold, archive_ts=last.hi if last is not None else hold.from_ts)
        self._storage.replace(_path(name), json.dumps(asdict(hold)).encode() + b"\n")
        floor = self.removal_mark()
        going = sorted(set(hold.bases) & set(floor.bases))
        if hold.from_ts < floor.before_ts or going:
            self.forget(name)
            what = (
                f"the base {going[0]}"
                if going
                else f"what was committed through {tso.text(floor.before_ts)}"
            )
            raise RemovedError(
                f"{self._storage.url}: {what} is removed, as [archive] says; {hold.what} needs it"
            )

    def forget(self, name: str) -> None:
        """Nothing is read any more under that name."""
        self._storage.remove(_path(name))

    @contextlib.contextmanager
    def held(self, name: str, hold: Pin) -> Iterator[None]:
        """As `note`, as long as the context lasts."""
        self.note(name, hold)
        try:
            yield
        finally:
            self.forget(name)

    def all(self) -> dict[str, Pin]:
        """Every hold by name, also of the dead.

        Raises RelayCorruptError for one that can't be read.
        """
        found: dict[str, Pin] = {}
        for file in self._storage.names(_FOLDER):
            path = f"{_FOLDER}/{file}"
            with contextlib.suppress(FileNotFoundError):
                try:
                    found[file.removesuffix(".json")] = Pin.from_json(
                        parse_json(self._storage.read(path), "the hold")
                    )
                except (ValueError, KeyError, TypeError) as error:
                    raise RelayCorruptError(
                        f"{self._storage.url}/{path}: {error!r}: nothing is removed from the"
                        " archive while it can't be read",
                        way_out="remove the file if nothing reads the archive",
                    ) from None
        return found

    def removal_mark(self) -> RemovalMark:
        """What is gone, or going."""
        return self._removal_mark.load()

    def advance_removal(
        self, before_ts: int, bases: tuple[str, ...], gone: tuple[str, ...] = ()
    ) -> RemovalMark:
        """From now on nobody begins to read the chain through `before_ts`, or `bases`, and `all`
        has everybody who began before, which takes a while where lists lag. Of the bases `gone`
        nothing is left, so they need no mention.
        """

        def raised(floor: RemovalMark) -> RemovalMark:
            named = tuple(sorted(set(floor.bases) - set(gone) | set(bases)))
            through = max(floor.before_ts, before_ts)
            if (through, named) == (floor.before_ts, floor.bases):
                return floor
            return replace(floor, before_ts=through, bases=named, token=secrets.token_hex(6))

        after = self._removal_mark.change(raised)
        if (before_ts or bases) and self._storage.lists_may_lag:
            sleep(LISTED_AFTER_S)
        return after


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}.json"


def _text(floor: RemovalMark) -> bytes:
    return json.dumps(asdict(floor)).encode() + b"\n"


def _parse(data: bytes) -> RemovalMark:
    document = parse_json(data, "what is gone from the archive (floor)")
    try:
        return RemovalMark(
            int(document["before_ts"]), tuple(map(str, document["bases"])), str(document["token"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no floor of an archive: {error!r}") from None


_DOCUMENT_FORMAT = DocumentFormat(
    _text, _parse, lambda: RemovalMark(token=""), way_out="restore the file from a copy"
)
