"""Keep the progress of continuous verification in one small file under the relay log's URL.

The next process continues from it:

    verified/continuous.json

An older state, of a process that was taken for dead and isn't, only has rows compared again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage

__all__ = ["ContinuousState", "ContinuousStateFile", "PendingMismatch", "ScanState"]

_PATH = "verified/continuous.json"
MAX_PENDING_MISMATCHES = 5_000


@dataclass(slots=True)
class PendingMismatch:
    """Rows of a table (full name upstream) that differed at `seen_ts` (TSO).

    They are those that `condition` selects, SQL over the key, "" for a table without one; `keys`:
    their bytes in hexadecimal digits. `confirmed`: they differed at a later checkpoint, too.
    `rows`: how many differ; `looked_ms`: when they were last compared.
    """

    table: str
    condition: str
    seen_ts: int
    confirmed: bool = False
    rows: int = 1
    keys: list[str] = field(default_factory=list)
    looked_ms: int = 0


@dataclass(slots=True)
class ScanState:
    """The round through the whole database: where it is.

    `low`: the key, as literals, from which on `table` is to be compared, None: from its first row;
    `table` "" is before the first one. `done`, `total`: about how many rows.
    """

    began_ms: int = 0
    table: str = ""
    low: list[str] | None = None
    in_table: int = 0
    done: int = 0
    total: int = 0
    is_over: bool = False


@dataclass(slots=True)
class ContinuousState(JsonDocument):
    """The state between runs; changes through `changes_ts` (TSO; 0: none) have been compared."""

    JSON_COMPLETE: ClassVar = True

    changes_ts: int = 0
    sweep: ScanState = field(default_factory=ScanState)
    suspects: list[PendingMismatch] = field(default_factory=list)

    def open_rows(self, table: str) -> int:
        """Return how many rows of a table are known to differ."""
        return sum(one.rows for one in self.suspects if one.confirmed and one.table == table)


class ContinuousStateFile:
    """The file of the state, in the relay log's storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self) -> ContinuousState:
        """Return the state that was written last.

        One that can't be read, or none, is a beginning: nothing but time is lost.
        """
        try:
            return ContinuousState.from_json(json.loads(self._storage.read(_PATH)))
        except (FileNotFoundError, ValueError):
            return ContinuousState()

    def keep(self, state: ContinuousState) -> None:
        """Write the state durably. Raises OSError."""
        self._storage.replace(_PATH, json.dumps(state.to_json()).encode() + b"\n")
