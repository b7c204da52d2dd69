"""The audit log: user actions through the pages, with their time and outcome.

It is one small document in the newest of ``audit/<number>.json``, next to the windows. The oldest
entries go. Reads of what rows hold have a log of their own, ``audit-reads/``, so that they push no
action out.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["AuditEntry", "AuditLog"]

MAX_ENTRIES = 1000
_FOLDER = "audit"
_READS_FOLDER = "audit-reads"
_MAX_VERSIONS = 8
_HINT = (
    "restore the file from a copy, or remove the folder: what was ordered before is forgotten then"
)


@dataclass(frozen=True, slots=True)
class AuditEntry(JsonDocument):
    """A user action (`pause-job`) on an object (`backfill-3`) at `at_ms` (Unix ms).

    `outcome` is "" while it is unknown.
    """

    at_ms: int
    by: str
    what: str
    about: str
    outcome: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(6))


class AuditLog:
    """The audit log. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage, *, reads: bool = False) -> None:
        """Open the log of actions, or that of reads."""
        folder = _READS_FOLDER if reads else _FOLDER
        self._file = VersionedDocument(
            storage, folder, DocumentFormat(to_bytes, _parse, tuple, _HINT), _MAX_VERSIONS
        )

    def begin(self, by: str, what: str, about: str) -> AuditEntry:
        """Durably keep that this was ordered, before it is done."""
        entry = AuditEntry(time.time_ns() // 1_000_000, by, what, about)
        self._file.change(lambda there: (*there, entry)[-MAX_ENTRIES:])
        return entry

    def end(self, entry: AuditEntry, outcome: str) -> None:
        """Durably keep what came of it."""
        done = AuditEntry(entry.at_ms, entry.by, entry.what, entry.about, outcome, entry.token)
        self._file.change(
            lambda there: tuple(done if each.token == entry.token else each for each in there)
        )

    def newest(self, most: int) -> list[AuditEntry]:
        """Return the newest `most` entries, newest first."""
        return list(reversed(self._file.load()[-most:]))


def _parse(data: bytes) -> tuple[AuditEntry, ...]:
    return from_bytes(tuple[AuditEntry, ...], data, "the audit log")
