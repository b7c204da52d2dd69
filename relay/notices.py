"""The causes of which people are notified: one message when each begins, one when it is over.

It is one small document in the newest of ``notices/<number>.json``, next to the windows. Tasks that
fail and the DAG that looks every few minutes share it, so a cause has one message, whichever task
meets it first and however often it is met. A process that takes a message to send is given
`SENDING_TIMEOUT_MS`. After that the next one takes it: a message may come twice, and is never lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from cattrs import override

from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["SENDING_TIMEOUT_MS", "Notice", "Notices"]

SENDING_TIMEOUT_MS = 120_000
"""A mail server answers within it, or the connection times out."""
CATCH_UP_MS = 1_800_000
"""A lag that followed from another cause may take this long to go after that cause is over."""
_FOLDER = "notices"
_MAX_VERSIONS = 8
_HINT = "remove the folder: what lasts is notified once more"


@dataclass(frozen=True, slots=True)
class Notice(JsonDocument):
    """A cause, and what people know of it. Times are Unix ms, 0: not yet.

    `key` identifies the cause while it lasts; `kind` is one of
    `sluice.etl.operate.notices.KINDS`. `command` is what to type, `page` where to look, below the
    pages' address. `is_quiet`: it follows from another cause, and has no message.
    """

    JSON_FIELDS: ClassVar = {"sent_ms": override(rename="told_ms")}
    """Release 1 wrote this name."""

    key: str
    kind: str
    text: str
    command: str
    page: str
    since_ms: int = 0
    seen_ms: int = 0
    sending_ms: int = 0
    sent_ms: int = 0
    over_ms: int = 0
    is_quiet: bool = False
    token: str = field(default_factory=lambda: secrets.token_hex(6))


class Notices:
    """The notices of a pipeline. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        """Open them; `storage` is the pipeline's own."""
        self._file: VersionedDocument[tuple[Notice, ...]] = VersionedDocument(
            storage, _FOLDER, DocumentFormat(to_bytes, _parse, tuple, _HINT), _MAX_VERSIONS
        )

    def load(self) -> tuple[Notice, ...]:
        """Return the causes that last, and those whose end isn't notified yet."""
        return self._file.load()

    def take(
        self,
        found: Iterable[Notice],
        has_ended: Callable[[Notice], bool],
        now_ms: int | None = None,
    ) -> list[Notice]:
        """Keep what was `found`, and return the notices to send now; others don't send them then.

        One with `over_ms` has ended. `has_ended` is asked about causes that aren't in `found`. Call
        `sent` for each that was sent.
        """
        now = _now_ms() if now_ms is None else now_ms
        by_key = {one.key: one for one in found}
        taken: list[Notice] = []

        def changed(there: tuple[Notice, ...]) -> tuple[Notice, ...]:
            taken.clear()
            known = {one.key for one in there}
            after = [_seen(one, by_key.get(one.key), has_ended, now) for one in there]
            after += [
                replace(one, since_ms=now, seen_ms=now)
                for key, one in by_key.items()
                if key not in known
            ]
            kept = [_claimed(one, now) for one in after if one is not None]
            taken.extend(one for one in kept if one.sending_ms == now and one not in there)
            return tuple(kept)

        self._file.change(changed)
        return taken

    def sent(self, keys: Collection[str], now_ms: int | None = None) -> None:
        """Record that the messages of these notices were sent."""
        now = _now_ms() if now_ms is None else now_ms

        def changed(there: tuple[Notice, ...]) -> tuple[Notice, ...]:
            return tuple(
                _marked(one, sent_ms=now, sending_ms=0) if one.key in keys else one
                for one in there
                if one.key not in keys or not one.over_ms
            )

        self._file.change(changed)


def _seen(
    known: Notice, found: Notice | None, has_ended: Callable[[Notice], bool], now: int
) -> Notice | None:
    """Return what a look makes of a known notice; None if there is nothing left to send of it."""
    if found is None:
        if not has_ended(known) or _is_being_sent(known, now):
            return known
        return _marked(known, over_ms=known.over_ms or now) if known.sent_ms else None
    catches_up = known.is_quiet and now - known.since_ms < CATCH_UP_MS
    is_quiet = not known.sent_ms and (found.is_quiet or catches_up)
    since = now if found.is_quiet and is_quiet else known.since_ms
    return _marked(known, seen_ms=now, over_ms=0, is_quiet=is_quiet, since_ms=since)


def _is_being_sent(one: Notice, now: int) -> bool:
    return now - one.sending_ms < SENDING_TIMEOUT_MS


def _claimed(one: Notice, now: int) -> Notice:
    """Return the notice as taken by this process if a message of it is due."""
    is_due = not one.is_quiet and bool(one.over_ms or not one.sent_ms)
    if not is_due or _is_being_sent(one, now):
        return one
    return _marked(one, sending_ms=now)


def _marked(one: Notice, **changes: Any) -> Notice:
    return replace(one, **changes, token=secrets.token_hex(6))


def _parse(data: bytes) -> tuple[Notice, ...]:
    return from_bytes(tuple[Notice, ...], data, "the notices")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
