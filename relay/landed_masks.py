"""The masks by which the relay log's values are masked, and since when.

It is one document in the newest of ``masks/<number>.json``, changed by the process that lands.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["LandedMasksLog", "MaskedSince"]

_FOLDER = "masks"
_MAX_VERSIONS = 8
_HINT = "remove the folder: the next landing writes it again, as of then"


@dataclass(frozen=True, slots=True)
class MaskedSince(JsonDocument):
    """All windows behind `since_ts` (TSO) are masked by the masks of `digest`; "": by none.

    `pipeline`: whose settings say so.
    """

    digest: str = ""
    since_ts: int = 0
    pipeline: str = ""
    token: str = field(default="")


class LandedMasksLog:
    """The document. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        """Open it; `storage` is the relay log's."""
        self._file: VersionedDocument[MaskedSince] = VersionedDocument(
            storage, _FOLDER, DocumentFormat(to_bytes, parse, MaskedSince, _HINT), _MAX_VERSIONS
        )

    def load(self) -> MaskedSince:
        """Return what is known."""
        return self._file.load()

    def note(self, digest: str, since_ts: int, pipeline: str) -> None:
        """Record the masks of the windows behind `since_ts`, unless they were these before."""

        def changed(before: MaskedSince) -> MaskedSince:
            if before.digest == digest:
                return before
            return MaskedSince(digest, since_ts, pipeline, secrets.token_hex(6))

        self._file.change(changed)


def parse(data: bytes) -> MaskedSince:
    """Parse the document. Raises NewerFormatError, ValueError."""
    return from_bytes(MaskedSince, data, "the masks of the relay log")
