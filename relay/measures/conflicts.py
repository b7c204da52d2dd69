"""The changes that lost conflicts, for people: the newest of those that were applied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sluice.relay.log import RelayLog
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["MAX_CONFLICTS", "ConflictHistory", "LostConflict"]

_FOLDER = "measures/conflicts"
_MAX_VERSIONS = 4
MAX_CONFLICTS = 1_000
"""The oldest go beyond it: the metric counts them all."""
_MAX_TEXT_CHARS = 500
_HINT = f"remove the folder `{_FOLDER}` beside the windows: it is written again from then on"


class LostConflict(NamedTuple):
    """A change of the transaction at `commit_ts` (TSO) that lost.

    It lost against the downstream's own at `local_ts`; `text` names table and key.
    """

    commit_ts: int
    local_ts: int
    text: str


class ConflictHistory:
    """The conflicts of a pipeline. Every method raises RelayCorruptError, OSError."""

    def __init__(self, relay: RelayLog) -> None:
        form = DocumentFormat(_to_json, _from_json, tuple, _HINT)
        self._document: VersionedDocument[tuple[LostConflict, ...]] = VersionedDocument(
            relay.place, _FOLDER, form, _MAX_VERSIONS
        )

    def note(self, lost: Sequence[tuple[int, int, str]]) -> None:
        """Record durably what lost, in the order of LostConflict's fields."""
        new = tuple(LostConflict(ts, local, text[:_MAX_TEXT_CHARS]) for ts, local, text in lost)
        self._document.change(lambda there: (*there, *new)[-MAX_CONFLICTS:])

    def load(self) -> tuple[LostConflict, ...]:
        """Return what lost, the newest last."""
        return self._document.load()


def _to_json(lost: tuple[LostConflict, ...]) -> bytes:
    return json.dumps({"conflicts": lost}, separators=(",", ":")).encode() + b"\n"


def _from_json(data: bytes) -> tuple[LostConflict, ...]:
    try:
        return tuple(LostConflict(*one) for one in json.loads(data)["conflicts"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no conflicts: {error!r}") from None
