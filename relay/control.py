"""What operators ask of the running tasks: one small JSON object in the newest of ``control/<number>.json``, next to
the windows.

    {"land_paused": false, "apply_paused": false, "apply_until_ts": null, "accepted": null}

`apply_until_ts` (TSO): applying goes up to exactly that commit timestamp, in the middle of a window if need be, and
waits there. `accepted`: the id of a refusal that applying goes on from all the same. Every key may be left out.

A change is a new file with the next number, created exclusively: of two who change at a time one begins anew, from what
the other asked for. A file ``control.json`` of an earlier version counts as long as there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from relay.errors import RelayCorruptError, RelayError
from relay.storage import Storage

__all__ = ["Control", "ControlFile"]

_FOLDER = "control"
_NAME = re.compile(r"(\d{12})\.json\Z")
_FORMER = "control.json"
_KEPT = 64
"""So many files are kept. Who changes what has become older than that is told so by the file before its own, which is
gone.
"""
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Control:
    """What operators ask of the tasks."""

    land_paused: bool = False
    apply_paused: bool = False
    apply_until_ts: int | None = None
    accepted: str | None = None

    def to_json(self) -> bytes:
        """As the file's content."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Control:
        """Read the file's content. Raises ValueError that names the key that is wrong."""
        raw = json.loads(data)
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
                raise ValueError(f"unknown key {key!r}; there are land_paused, apply_paused, apply_until_ts, accepted")
            if not good:
                raise ValueError(f"{key}: {value!r} is no value for it")
        return cls(**raw)


class ControlFile:
    """The orders of a relay log, changed by compare-and-set."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self) -> Control:
        """The newest; the default if nobody asked for anything. Raises RelayCorruptError, which names the file."""
        return self._load()[1]

    def change(self, change: Callable[[Control], Control]) -> Control:
        """Durably put what `change` makes of the newest in its place; what is there now. `change` may be called several
        times.
        """
        for _ in range(_ATTEMPTS):
            number, before = self._load()
            after = change(before)
            if after == before:
                return after
            try:
                self._storage.create(_path(number + 1), after.to_json())
            except FileExistsError:
                continue
            numbers = self._numbers()
            if (
                number not in numbers if number else numbers[-1] > _KEPT
            ):  # changed often since it was read: the name was free again
                self._storage.remove(_path(number + 1))
                continue
            for old in numbers[:-_KEPT]:
                self._storage.remove(_path(old))
            if not number:
                self._storage.remove(_FORMER)
            return after
        raise RelayError(
            f"{self._storage.url}/{_FOLDER}: changed by others all the time", way_out="try again", transient=True
        )

    def _load(self) -> tuple[int, Control]:
        for _ in range(_ATTEMPTS):
            number = max(self._numbers(), default=0)
            path = _path(number) if number else _FORMER
            try:
                return number, Control.from_json(self._storage.read(path))
            except FileNotFoundError:
                if not number and not self._numbers():
                    return 0, Control()
            except ValueError as error:
                raise RelayCorruptError(
                    f"{self._storage.url}/{path}: {error}",
                    way_out="correct the file, or remove it for what was asked for before",
                ) from None
        raise RelayError(
            f"{self._storage.url}/{_FOLDER}: changed by others all the time", way_out="try again", transient=True
        )

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for match in map(_NAME.match, self._storage.names(_FOLDER)) if match)


def _path(number: int) -> str:
    return f"{_FOLDER}/{number:012d}.json"
