"""What operators ask of the running tasks: one small JSON object, ``control.json``, next to the windows.

    {"land_paused": false, "apply_paused": false, "apply_until_ts": null}

`apply_until_ts` (TSO): applying goes up to exactly that commit timestamp, in the middle of a window if need be, and waits
there. Every key may be left out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Control"]


@dataclass(frozen=True, slots=True)
class Control:
    """What operators ask of the tasks."""

    land_paused: bool = False
    apply_paused: bool = False
    apply_until_ts: int | None = None

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
            else:
                raise ValueError(f"unknown key {key!r}; there are land_paused, apply_paused, apply_until_ts")
            if not good:
                raise ValueError(f"{key}: {value!r} is no value for it")
        return cls(**raw)
