"""The downstream's owner: two small JSON objects next to the windows.

    downstream.json   {"pipeline": "sluice-1a2b/5e6f", "downstream": "db:3306 …", "adopted": null,
                       "begun": true}
    stop.json         {"why": "…", "made_ms": 1}

A relay log's changes go to one downstream. `pipeline` is the owner that its checkpoint row names;
`adopted` is the row as it was when this pipeline took it over from another writer. A stop is there
until an operator removes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sluice.relay.json_codec import JsonDocument

__all__ = ["Ownership", "StopMark"]


@dataclass(frozen=True, slots=True)
class Ownership(JsonDocument):
    """The downstream that this relay log's changes go to."""

    JSON_NAME: ClassVar = "what is known of the downstream (downstream.json)"
    JSON_COMPLETE: ClassVar = True

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


@dataclass(frozen=True, slots=True)
class StopMark(JsonDocument):
    """The reason why applying stops until an operator allows it. `made_ms`: Unix ms."""

    JSON_NAME: ClassVar = "the stop of applying (stop.json)"

    why: str
    made_ms: int
