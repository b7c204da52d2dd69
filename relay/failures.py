"""Failures that stopped a task for good: one small JSON object a task, until it goes on.

failures/land.json   {"what": "land", "message": "…", "hint": "…", "made_ms": 1}
failures/land.go-on  1: operators have repaired the cause of the failure with that `made_ms`,
                     see `Failures.answer`
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sluice.relay.format_version import NewerFormatError
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage

_FOLDER = "failures"


@dataclass(frozen=True, slots=True)
class Failure(JsonDocument):
    """The error that ended a task. `made_ms`: Unix ms."""

    what: str
    """The task: ``land``, ``apply``, ``archive``, ``compact``, ``retain``."""
    message: str
    hint: str
    made_ms: int


class Failures:
    """The failures in a relay log. They are for people: one that can't be read is passed over."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def note(self, failure: Failure) -> None:
        """Record durably why a task stopped; the newest counts. Raises OSError."""
        self._storage.replace(_path(failure.what), failure.to_bytes())

    def clear(self, what: str) -> None:
        """Remove a task's failure, as it has gone on. Raises OSError."""
        self._storage.remove(_path(what))
        self._storage.remove(_answer_path(what))

    def answer(self, failure: Failure) -> None:
        """Let the task of this failure continue, if it still waits. Raises OSError."""
        self._storage.replace(_answer_path(failure.what), b"%d\n" % failure.made_ms)

    def is_answered(self, failure: Failure) -> bool:
        """Return whether the task of this failure may go on. Raises OSError."""
        try:
            return self._storage.read(_answer_path(failure.what)).strip() == b"%d" % failure.made_ms
        except FileNotFoundError:
            return False

    def list(self) -> list[Failure]:
        """Return the recorded failures by task. Raises OSError."""
        found = []
        for name in self._storage.names(_FOLDER):
            if not name.endswith(".json"):
                continue
            with contextlib.suppress(FileNotFoundError, NewerFormatError, ValueError):
                found.append(Failure.from_bytes(self._storage.read(f"{_FOLDER}/{name}")))
        return found


def _path(what: str) -> str:
    return f"{_FOLDER}/{what}.json"


def _answer_path(what: str) -> str:
    return f"{_FOLDER}/{what}.go-on"
