"""An archiver and a compaction for a process of its own, without Spark."""

from __future__ import annotations

from sluice.etl.history.archive import archiver, compact
from sluice.etl.history.archive.archiver import Archiver
from tests.etl.history.archive.archiving import LocalJobs, settings_of


def archive(relay_url: str) -> None:
    """All that is landed, in segments of a window each."""
    archiver._CHECK_INTERVAL_S = 0.01
    settings = settings_of(relay_url)
    Archiver(settings, jobs=LocalJobs(settings), segment_bytes=1).through()


def compact_all(relay_url: str) -> None:
    """The segments of a window each become one."""
    settings = settings_of(relay_url)
    compact(settings, jobs=LocalJobs(settings, settings.archive_url))
