"""An archiver and a compaction for a process of its own, without Spark."""

from __future__ import annotations

from etl.archive import archiver, compact
from etl.archive.archiver import Archiver
from tests.etl.archive.archiving import LocalJobs, settings_of


def archive(relay_url: str) -> None:
    """All that is landed, in volumes of a window each."""
    archiver._LOOK_EVERY_S = 0.01
    settings = settings_of(relay_url)
    Archiver(settings, jobs=LocalJobs(settings), volume_bytes=1).through()


def compact_all(relay_url: str) -> None:
    """The volumes of a window each become one."""
    settings = settings_of(relay_url)
    compact(settings, jobs=LocalJobs(settings, settings.archive_url))
