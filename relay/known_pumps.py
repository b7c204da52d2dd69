"""The pumps that landing counts, and late commits: those that came after a reader had passed them.

    <url>/pumps/<number>.json     the newest counts, see `sluice.relay.versioned_document`

    {"pumps": {"pump-1:8250": {"host": "10.0.0.1:8250", "state": "online", "is_original": false}},
     "late": {"470655472620535808": {"start_ts": 1, "pump": "pump-1:8250", "outcome": "missed"}},
     "former": ["pump-2:8250"], "token": "…"}

The registry may lose an entry, and a pump may be set offline with binlogs that nothing has read. A
pump that counted once is therefore kept here until it has handed over everything, or an operator
gives up what it holds.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

from sluice.relay.format_version import parse_json
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["ACCEPTED", "LANDED", "MISSED", "KnownPump", "KnownPumps", "LateCommit", "PumpsDocument"]

LANDED, MISSED, ACCEPTED = "landed", "missed", "accepted"
_FOLDER = "pumps"
_MAX_VERSIONS = 64
_HINT = (
    "restore the file from a copy; without the folder landing takes the registry's pumps for all"
    " there are"
)


@dataclass(frozen=True, slots=True)
class KnownPump:
    """A pump as it was when it counted last. `host` is "ip:port", `state` the registry's.

    `is_captured`: it captures from TiKV, and is a replica of all others that do.
    """

    host: str
    state: str
    is_original: bool = False
    is_captured: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object; older versions of Sluice read it unless `is_captured`."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "is_captured" or self.is_captured
        }


@dataclass(frozen=True, slots=True)
class LateCommit:
    """A commit that a pump received after readers had passed its timestamp.

    `outcome`: LANDED, MISSED or ACCEPTED.
    """

    start_ts: int
    pump: str
    outcome: str


@dataclass(frozen=True, slots=True)
class PumpsDocument:
    """The document: `pumps` by node id, `late` by commit ts, and `former`.

    `former` are the ids of pumps that counted and no longer do.
    """

    pumps: Mapping[str, KnownPump] = field(default_factory=dict)
    late: Mapping[int, LateCommit] = field(default_factory=dict)
    former: frozenset[str] = frozenset()

    def to_json(self) -> bytes:
        """Encode as the file's content; the token makes two writers' files differ."""
        raw = {
            "pumps": {node_id: pump.to_dict() for node_id, pump in self.pumps.items()},
            "late": {str(commit_ts): asdict(late) for commit_ts, late in self.late.items()},
            "former": sorted(self.former),
            "token": secrets.token_hex(6),
        }
        return json.dumps(raw, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> PumpsDocument:
        """Decode the file's content. Raises ValueError."""
        raw = parse_json(data, "what landing knows of the pumps")
        try:
            pumps = {node_id: KnownPump(**each) for node_id, each in raw["pumps"].items()}
            late = {int(commit_ts): LateCommit(**each) for commit_ts, each in raw["late"].items()}
            former = frozenset(map(str, raw.get("former", ())))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no document of pumps: {error}") from None
        return cls(pumps, late, former)


class KnownPumps:
    """The document in a relay log. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        form = DocumentFormat(PumpsDocument.to_json, PumpsDocument.from_json, PumpsDocument, _HINT)
        self._file = VersionedDocument(storage, _FOLDER, form, _MAX_VERSIONS)

    def load(self) -> PumpsDocument:
        """Return the newest; empty before the first window."""
        return self._file.load()

    def change(self, change: Callable[[PumpsDocument], PumpsDocument]) -> PumpsDocument:
        """Durably store what `change` makes of the newest, by compare-and-set.

        `change` may run several times.
        """
        return self._file.change(change)

    def forget(self, node_id: str) -> bool:
        """Give up what a pump holds; False if it isn't known here."""
        was_known = False

        def without(seen: PumpsDocument) -> PumpsDocument:
            nonlocal was_known
            was_known = node_id in seen.pumps
            pumps = {each: pump for each, pump in seen.pumps.items() if each != node_id}
            return replace(seen, pumps=pumps, former=seen.former | {node_id})

        self.change(without)
        return was_known
