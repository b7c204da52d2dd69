"""The rules by which a pipeline applied last, and the tables that older ones left as they are.

It is one document in the newest of ``rules/<number>.json`` in the pipeline's folder. People who
change rules have to know which tables downstream follow former ones, until a copy replaces them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument
from sluice.tidb.table_name import argument

__all__ = ["AppliedRules", "OutdatedTable", "RuleChanges"]

_FOLDER = "rules"
_MAX_VERSIONS = 8
_HINT = "remove the folder: the present rules then count as those by which all was written"


@dataclass(frozen=True, slots=True)
class OutdatedTable(JsonDocument):
    """A table whose rows downstream follow rules that have changed since.

    `name`: `schema.table` upstream; `why`: what changed; `since_ts` (TSO): the checkpoint then;
    `since_ms`: when that was noted, Unix ms, 0 while no process applies by the new rules yet.
    """

    table_id: int
    name: str
    why: str
    since_ts: int
    since_ms: int = 0

    @property
    def command(self) -> str:
        """Return the command that makes the table what the rules say."""
        return f"sluice backfill --table {argument(self.name)}"


@dataclass(frozen=True, slots=True)
class AppliedRules(JsonDocument):
    """The rules by which a process applied last: their digest, and their text as JSON.

    "" before the first process that keeps them.
    """

    digest: str = ""
    rules: str = ""
    tables: tuple[OutdatedTable, ...] = ()
    token: str = field(default="")

    def are_others(self, digest: str) -> bool:
        """Return whether those of `digest` are other rules; before the first ones none are."""
        return self.digest not in ("", digest)


class RuleChanges:
    """The document. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        """Open it; `storage` is the pipeline's own."""
        self._file: VersionedDocument[AppliedRules] = VersionedDocument(
            storage, _FOLDER, DocumentFormat(to_bytes, parse, AppliedRules, _HINT), _MAX_VERSIONS
        )

    def load(self) -> AppliedRules:
        """Return what is known."""
        return self._file.load()

    def change(self, change: Callable[[AppliedRules], AppliedRules]) -> AppliedRules:
        """Put what `change` makes of it in its place, and return that."""

        def changed(before: AppliedRules) -> AppliedRules:
            after = change(before)
            if after == before:
                return before
            return AppliedRules(after.digest, after.rules, after.tables, secrets.token_hex(6))

        return self._file.change(changed)


def parse(data: bytes) -> AppliedRules:
    """Parse the document. Raises NewerFormatError, ValueError."""
    return from_bytes(AppliedRules, data, "the rules applied last")
