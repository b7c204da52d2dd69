"""The archive: the past, in few large files with a manifest of their own.

    <archive>/days/<YYYY-MM-DD>/<number>.json
        the segments that begin on that UTC day: `sluice.relay.archive.catalogue`
    <archive>/log/<day>/<lo>-<hi>-<token>.parquet
        a segment's row changes: `sluice.relay.row_groups`
    <archive>/log/<day>/<lo>-<hi>-<token>.windows
        a segment's windows: `sluice.relay.archive.index`
    <archive>/lake/…
        the same changes as typed columns
    <archive>/snapshots/…
        snapshots, all tables as of one TSO: `sluice.relay.archive.snapshots`
    <archive>/overrides/<commit_ts>.json
        operators' overrides of transactions and DDL inside: `sluice.relay.overrides`
    <archive>/pipelines/<name>/overrides/…
        overrides of other pipelines, if there are several: `sluice.relay.pipeline_folders`

An archive segment is a range `(lo, hi]` of whole windows and never changes; each begins where the
one before it ends.

What reads and writes row changes loads on first use: it needs Arrow, and the manifests don't.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sluice.relay.archive.archive import Archive
from sluice.relay.archive.collecting import active_pins, remove_unreferenced
from sluice.relay.archive.pins import DEAD_AFTER_MS, Pin, Pins, RemovalMark, RemovedError
from sluice.relay.archive.segment import ArchiveFile, ArchiveSegment, LakeFile, day_of
from sluice.relay.archive.snapshot_manifest import (
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotFile,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.archive.snapshots import SnapshotStore
from sluice.relay.errors import ArchiveConflictError
from sluice.relay.overrides import sync_overrides

if TYPE_CHECKING:
    from sluice.relay.archive.archive_log import ArchiveLog
    from sluice.relay.archive.index import SegmentIndexCache
    from sluice.relay.archive.log_writer import WrittenLog, write_log

__all__ = [
    "DEAD_AFTER_MS",
    "Archive",
    "ArchiveConflictError",
    "ArchiveFile",
    "ArchiveLog",
    "ArchiveSegment",
    "ArchiveSnapshot",
    "LakeFile",
    "PendingSnapshot",
    "Pin",
    "Pins",
    "RemovalMark",
    "RemovedError",
    "SegmentIndexCache",
    "SnapshotFile",
    "SnapshotStore",
    "SnapshotTable",
    "WrittenLog",
    "active_pins",
    "day_of",
    "remove_unreferenced",
    "snapshot_id",
    "sync_overrides",
    "write_log",
]

_HOME = {
    "ArchiveLog": "archive_log",
    "SegmentIndexCache": "index",
    "WrittenLog": "log_writer",
    "write_log": "log_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sluice.relay.archive' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
