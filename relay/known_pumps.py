"""The pumps that landing counts, and late commits: those that came after a reader had passed them.

    <url>/pumps/<number>.json     the newest counts, see `sluice.relay.versioned_document`

    {"pumps": {"pump-1:8250": {"host": "10.0.0.1:8250", "state": "online", "is_original": false}},
     "late": {"470655472620535808": {"start_ts": 1, "pump": "pump-1:8250", "outcome": "missed"}},
     "answered": {"": {"pump": "pump-1:8250", "lo": 1, "hi": 9, "transactions": 3, "digest": "…"}},
     "former": ["pump-2:8250"], "token": "…"}

The registry may lose an entry, and a pump may be set offline with binlogs that nothing has read. A
pump that counted once is therefore kept here until it has handed over everything, or an operator
gives up what it holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cattrs import override

from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = [
    "ACCEPTED",
    "LANDED",
    "MISSED",
    "AnsweredRange",
    "KnownPump",
    "KnownPumps",
    "LateCommit",
    "PumpsDocument",
]

LANDED, MISSED, ACCEPTED = "landed", "missed", "accepted"
_FOLDER = "pumps"
_MAX_VERSIONS = 64
_HINT = (
    "restore the file from a copy; without the folder landing takes the registry's pumps for all"
    " there are"
)


@dataclass(frozen=True, slots=True)
class KnownPump(JsonDocument):
    """A pump as it was when it counted last. `host` is "ip:port", `state` the registry's."""

    host: str
    state: str
    is_original: bool = False


@dataclass(frozen=True, slots=True)
class LateCommit:
    """A commit that a pump received after readers had passed its timestamp.

    `outcome`: LANDED, MISSED or ACCEPTED.
    """

    start_ts: int
    pump: str
    outcome: str


@dataclass(frozen=True, slots=True)
class AnsweredRange(JsonDocument):
    """What the capturing pump that landing read had in (lo, hi] (TSO).

    `digest` is that of `sluice.tidb.window_schema.digest_of`, in hex; "" if it isn't known.
    """

    pump: str
    lo: int
    hi: int
    transactions: int
    digest: str


@dataclass(frozen=True, slots=True)
class PumpsDocument(JsonDocument):
    """The document: `pumps` by node id, `late` by commit ts, and `former`.

    `former` are the ids of pumps that counted and no longer do. `is_captured`: landing has read
    captured changes, so binlogs may have gaps since, and are never read again. `answered`: by share
    ("" for all tables) a range that a pump's successor must have alike.
    """

    JSON_COMPLETE: ClassVar = True
    JSON_NAME: ClassVar = "what landing knows of the pumps"
    JSON_FIELDS: ClassVar = {  # earlier versions wrote none of them
        "answered": OMIT_DEFAULT,
        "former": override(),
        "is_captured": OMIT_DEFAULT,
        "token": override(),
    }

    pumps: Mapping[str, KnownPump] = field(default_factory=dict)
    late: Mapping[int, LateCommit] = field(default_factory=dict)
    former: frozenset[str] = frozenset()
    is_captured: bool = False
    answered: Mapping[str, AnsweredRange] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(6), compare=False)
    """Makes the files of two writers differ."""


class KnownPumps:
    """The document in a relay log. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        form = DocumentFormat(
            PumpsDocument.to_bytes, PumpsDocument.from_bytes, PumpsDocument, _HINT
        )
        self._file = VersionedDocument(storage, _FOLDER, form, _MAX_VERSIONS)

    def load(self) -> PumpsDocument:
        """Return the newest; empty before the first window."""
        return self._file.load()

    def change(self, change: Callable[[PumpsDocument], PumpsDocument]) -> PumpsDocument:
        """Durably store what `change` makes of the newest, by compare-and-set.

        `change` may run several times.
        """
        return self._file.change(lambda seen: replace(change(seen), token=secrets.token_hex(6)))

    def keep_answer(self, share: str, answer: AnsweredRange) -> None:
        """Durably keep what the pump of a share had, in place of the one before."""
        self.change(lambda seen: replace(seen, answered={**seen.answered, share: answer}))

    def forget(self, node_id: str) -> bool:
        """Give up what a pump holds, and what was known of it; False if it isn't known here."""
        was_known = False

        def without(seen: PumpsDocument) -> PumpsDocument:
            nonlocal was_known
            was_known = node_id in seen.pumps
            pumps = {each: pump for each, pump in seen.pumps.items() if each != node_id}
            answered = {key: it for key, it in seen.answered.items() if it.pump != node_id}
            former = seen.former | {node_id}
            return replace(seen, pumps=pumps, former=former, answered=answered)

        self.change(without)
        return was_known
