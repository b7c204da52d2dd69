"""The transactions that the downstream refused in the last day, for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from sluice.relay.log import RelayLog
from sluice.relay.measures.points import DAY
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["Refusal", "RefusalHistory"]

_FOLDER = "measures/refusals"
_MAX_VERSIONS = 4
_MAX_REFUSALS = 200
"""The oldest go beyond it: a downstream that refuses more needs more than a list."""
_MAX_TEXT_CHARS = 1_000
_HINT = f"remove the folder `{_FOLDER}` beside the windows: it is written again from then on"


class Refusal(NamedTuple):
    """A transaction that was refused `attempts` times, last at `at_ms` (Unix ms).

    `commit_ts` is 0 where no single transaction was found; `text` is the error's message.
    """

    at_ms: int
    commit_ts: int
    text: str
    attempts: int = 1


class RefusalHistory:
    """The refusals of a pipeline. Every method raises RelayCorruptError, OSError."""

    def __init__(self, relay: RelayLog) -> None:
        form = DocumentFormat(_to_json, _from_json, tuple, _HINT)
        self._document: VersionedDocument[tuple[Refusal, ...]] = VersionedDocument(
            relay.place, _FOLDER, form, _MAX_VERSIONS
        )

    def note(self, text: str, commit_ts: int = 0, now_ms: int | None = None) -> None:
        """Record durably that a transaction was refused; attempts of the same one are counted."""
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        new = Refusal(now, commit_ts, text[:_MAX_TEXT_CHARS])
        self._document.change(lambda there: _with(there, new))

    def since(self, since_ms: int) -> list[Refusal]:
        """Return what was refused after `since_ms` (Unix ms) at last, the newest last."""
        return [one for one in self._document.load() if one.at_ms > since_ms]


def _with(there: Iterable[Refusal], new: Refusal) -> tuple[Refusal, ...]:
    kept = []
    for one in there:
        if one.at_ms <= new.at_ms - DAY.span_ms:
            continue
        if _is_same(one, new):
            new = new._replace(attempts=new.attempts + one.attempts)
        else:
            kept.append(one)
    return (*kept, new)[-_MAX_REFUSALS:]


def _is_same(one: Refusal, other: Refusal) -> bool:
    if one.commit_ts or other.commit_ts:
        return one.commit_ts == other.commit_ts
    return one.text == other.text


def _to_json(refusals: tuple[Refusal, ...]) -> bytes:
    return json.dumps({"refusals": refusals}, separators=(",", ":")).encode() + b"\n"


def _from_json(data: bytes) -> tuple[Refusal, ...]:
    try:
        return tuple(Refusal(*one) for one in json.loads(data)["refusals"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no refusals: {error!r}") from None
