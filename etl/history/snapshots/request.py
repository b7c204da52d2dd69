"""Define the request for a snapshot, and the outcome of its job."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from sluice.etl.copy import DumplingOptions
from sluice.relay.archive import ArchiveSnapshot
from sluice.relay.jobs import DONE
from sluice.relay.json_codec import JsonDocument

__all__ = ["ARCHIVE", "AUTO", "DOWNSTREAM", "TIDB", "SnapshotJobSummary", "SnapshotRequest"]

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
        """Parse a source as people write it: a dump's folder may be a path."""
        known = source in (DOWNSTREAM, TIDB, ARCHIVE, AUTO) or "://" in source
        return cls(
            source if known else str(Path(source).absolute()), full, options or DumplingOptions()
        )


@dataclass(frozen=True, slots=True)
class SnapshotJobSummary(JsonDocument):
    """Outcome of a run.

    `snapshot`: its name, "" if it isn't made; `referred`: how many tables' rows lie in older
    snapshots; `copied_rows`, `copied_bytes` (in memory) what was written for it.
    """

    job: str
    state: str
    snapshot: str = ""
    ts: int = 0
    tables: int = 0
    referred: int = 0
    rows: int = 0
    file_bytes: int = 0
    copied_rows: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def from_snapshot(cls, job: str, snapshot: ArchiveSnapshot, began: float) -> SnapshotJobSummary:
        """Summarize a job that made a snapshot."""
        own = [
            file
            for table in snapshot.tables
            for file in table.files
            if file.path.split("/")[1] == snapshot.id
        ]
        others = [table for table in snapshot.tables if table.files and table.files[0] not in own]
        return cls(
            job,
            DONE,
            snapshot.id,
            snapshot.ts,
            len(snapshot.tables),
            len(others),
            snapshot.rows,
            snapshot.file_bytes,
            sum(file.rows for file in own),
            sum(file.row_bytes for file in own),
            round(time.monotonic() - began, 3),
        )
