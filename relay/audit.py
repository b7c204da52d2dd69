"""Who ordered what, and when, through the pages: one small document in the newest of ``audit/<number>.json``, next to
the windows. The oldest entries go.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from relay.numbered import Form, Numbered
from relay.storage import Storage

__all__ = ["Audit", "Deed"]

MOST = 1000
_FOLDER = "audit"
_KEPT = 8
_WAY_OUT = "restore the file from a copy, or remove the folder: what was ordered before is forgotten then"


@dataclass(frozen=True, slots=True)
class Deed:
    """At `at_ms` (Unix ms) somebody ordered something (`pause-job`) of something (`backfill-3`); `said`: what came of
    it, "" as long as nobody knows.
    """

    at_ms: int
    by: str
    what: str
    about: str
    said: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


class Audit:
    """What was ordered. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage) -> None:
        self._file = Numbered(storage, _FOLDER, Form(_text, _parse, tuple, _WAY_OUT), _KEPT)

    def begin(self, by: str, what: str, about: str) -> Deed:
        """Durably keep that this was ordered, before it is done."""
        deed = Deed(time.time_ns() // 1_000_000, by, what, about)
        self._file.change(lambda there: (*there, deed)[-MOST:])
        return deed

    def end(self, deed: Deed, said: str) -> None:
        """Durably keep what came of it."""
        done = Deed(deed.at_ms, deed.by, deed.what, deed.about, said, deed.token)
        self._file.change(lambda there: tuple(done if each.token == deed.token else each for each in there))

    def newest(self, most: int) -> list[Deed]:
        """The newest, newest first."""
        return list(reversed(self._file.load()[-most:]))


def _text(deeds: tuple[Deed, ...]) -> bytes:
    return json.dumps([deed.to_json() for deed in deeds], ensure_ascii=False).encode() + b"\n"


def _parse(data: bytes) -> tuple[Deed, ...]:
    try:
        return tuple(Deed(**each) for each in json.loads(data))
    except TypeError as error:
        raise ValueError(f"no list of what was ordered: {error}") from None
