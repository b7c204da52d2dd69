"""The downstream's owner: two small JSON objects next to the windows.

    downstream.json   {"pipeline": "sluice-1a2b/5e6f", "downstream": "db:3306 …", "adopted": null,
                       "begun": true}
    stop.json         {"why": "…", "made_ms": 1}

A relay log's changes go to one downstream. `pipeline` is the owner that its checkpoint row names;
`adopted` is the row as it was when this pipeline took it over from another writer. A stop is there
until an operator removes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from sluice.relay.format_version import parse_json

__all__ = ["Ownership", "StopMark"]


def _fields(data: bytes, kinds: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises ValueError that names the one that is wrong."""
    raw = parse_json(data, "what is known of the downstream (downstream.json, stop.json)")
    if not isinstance(raw, dict) or set(raw) != set(kinds):
        raise ValueError(f"a JSON object with the keys {', '.join(kinds)} is expected")
    for key, value in raw.items():
        if type(value) not in kinds[key]:
            raise ValueError(f"{key}: {value!r} is no value for it")
    return raw


@dataclass(frozen=True, slots=True)
class Ownership:
    """The downstream that this relay log's changes go to."""

    pipeline: str
    """Stands in every checkpoint that this pipeline writes; no other relay log has the same."""
    downstream: str
    """The downstream, for people to read and to compare; without secrets."""
    adopted: str | None = None
    """The checkpoint row as it was found, None if there was none.

    While it is still the same, no other pipeline has written.
    """
    begun: bool = False
    """Whether this pipeline has written a checkpoint there."""

    def to_json(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        return cls(
            **_fields(
                data,
                {
                    "pipeline": (str,),
                    "downstream": (str,),
                    "adopted": (str, type(None)),
                    "begun": (bool,),
                },
            )
        )


@dataclass(frozen=True, slots=True)
class StopMark:
    """Why applying must not go on until an operator allows it. `made_ms`: Unix ms."""

    why: str
    made_ms: int

    def to_json(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        return cls(**_fields(data, {"why": (str,), "made_ms": (int,)}))
