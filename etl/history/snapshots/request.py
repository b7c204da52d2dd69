"""Define the request for a snapshot: its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from sluice.etl.copy import DumplingOptions
from sluice.relay.json_codec import JsonDocument

__all__ = ["ARCHIVE", "AUTO", "DOWNSTREAM", "TIDB", "SnapshotRequest"]

DOWNSTREAM, TIDB, ARCHIVE, AUTO = "downstream", "tidb", "archive", "auto"


@dataclass(frozen=True, slots=True)
class SnapshotRequest(JsonDocument):
    """A request for a snapshot; `source`: AUTO, DOWNSTREAM, TIDB, ARCHIVE or a URL.

    DOWNSTREAM, at its checkpoint; TIDB, at what is landed or now; ARCHIVE, the youngest snapshot
    rolled forward; or the URL of a folder that Dumpling wrote. `full`: every table is read, also
    those that have not changed since the youngest snapshot.
    """

    JSON_COMPLETE: ClassVar = True

    source: str
    full: bool = False
    options: DumplingOptions = field(default_factory=DumplingOptions)

    @classmethod
    def parse(
        cls, source: str, *, full: bool = False, options: DumplingOptions | None = None
    ) -> Self:
        """As people write it: a dump's folder may be a path."""
        known = source in (DOWNSTREAM, TIDB, ARCHIVE, AUTO) or "://" in source
        return cls(
            source if known else str(Path(source).absolute()), full, options or DumplingOptions()
        )
