"""Operators' requests to the running tasks.

They are one small JSON object in the newest of ``control/<number>.json``, next to the windows.

    {"land_paused": false, "apply_paused": false, "apply_until_ts": null, "accepted": null}

`apply_until_ts` (TSO): applying goes up to exactly that commit timestamp, in the middle of a window
if need be, and waits there. `accepted`: the id of a blocked batch that is applied all the same.
Every key may be left out.

`sluice.relay.versioned_document` describes how it is changed. A file ``control.json`` of an earlier
version counts while there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from sluice.relay.errors import RelayCorruptError
from sluice.relay.format_version import parse_json
from sluice.relay.storage import Storage
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument

__all__ = ["Control", "ControlFile"]

_FOLDER = "control"
_LEGACY_FILE = "control.json"
_MAX_VERSIONS = 64
_HINT = "correct the file, or remove it for what was asked for before"


@dataclass(frozen=True, slots=True)
class Control:
    """Operators' requests to the tasks."""

    land_paused: bool = False
    apply_paused: bool = False
    apply_until_ts: int | None = None
    accepted: str | None = None

    def to_json(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Control:
        """Read the file's content. Raises ValueError that names the key that is wrong."""
        raw = parse_json(data, "what operators ask for (control)")
        if not isinstance(raw, dict):
            raise ValueError("a JSON object is expected")
        for key, value in raw.items():
            if key in ("land_paused", "apply_paused"):
                good = type(value) is bool
            elif key == "apply_until_ts":
                good = value is None or (type(value) is int and value >= 0)
            elif key == "accepted":
                good = value is None or type(value) is str
            else:
                raise ValueError(
                    f"unknown key {key!r}; there are land_paused, apply_paused, apply_until_ts,"
                    " accepted"
                )
            if not good:
                raise ValueError(f"{key}: {value!r} is no value for it")
        return cls(**raw)


class ControlFile:
    """The orders of a relay log, changed by compare-and-set."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        form = DocumentFormat(Control.to_json, Control.from_json, self._former, _HINT)
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
        before = self._file.number()
        after = self._file.change(change)
        if not before and self._file.number():
            self._storage.remove(_LEGACY_FILE)
        return after

    def _former(self) -> Control:
        try:
            return Control.from_json(self._storage.read(_LEGACY_FILE))
        except FileNotFoundError:
            return Control()
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{_LEGACY_FILE}: {error}", hint=_HINT
            ) from None
