"""Operators' requests to the running tasks.

They are one small JSON object in the newest of ``control/<number>.json``, next to the windows.

    {"land_paused": false, "apply_paused": false, "apply_until_ts": null, "accepted": null}

`apply_until_ts` (TSO): applying goes up to exactly that commit timestamp, in the middle of a window
if need be, and waits there. `accepted`: the id of a blocked batch that is applied all the same.
Every key may be left out.

`sluice.relay.versioned_document` describes how it is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["Control", "ControlFile"]

_FOLDER = "control"
_MAX_VERSIONS = 64
_HINT = "correct the file, or remove it for what was asked for before"


@dataclass(frozen=True, slots=True)
class Control(JsonDocument):
    """Operators' requests to the tasks."""

    JSON_NAME: ClassVar = "what operators ask for (control)"

    land_paused: bool = False
    apply_paused: bool = False
    apply_until_ts: int | None = None
    accepted: str | None = None

    def __post_init__(self) -> None:
        if self.apply_until_ts is not None and self.apply_until_ts < 0:
            raise ValueError(f"invalid apply_until_ts {self.apply_until_ts}")


class ControlFile:
    """The orders of a relay log, changed by compare-and-set."""

    def __init__(self, storage: Storage) -> None:
        form = DocumentFormat(Control.to_bytes, Control.from_bytes, Control, _HINT)
        self._file = VersionedDocument(storage, _FOLDER, form, _MAX_VERSIONS)

    def load(self) -> Control:
        """Return the newest requests, the default if there are none.

        Raises RelayCorruptError, which names the file.
        """
        return self.newest()[1]

    def newest(self) -> tuple[int, Control]:
        """Return the newest and its number, 0 before the first order. Raises as `load`."""
        return self._file.newest()

    def change(self, change: Callable[[Control], Control]) -> Control:
        """Durably put what `change` makes of the newest in its place; what is there now.

        `change` may be called several times.
        """
        return self._file.change(change)
