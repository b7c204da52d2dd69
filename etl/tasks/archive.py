"""Archiving as Airflow's tasks: passes for a while, then the files are put in order."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from sluice.etl.history.archive.archiver import QUIET_MS, Archiver
from sluice.etl.history.archive.compaction import compact as compact_files
from sluice.etl.history.lake.iceberg_view import IcebergView
from sluice.etl.settings import Settings

__all__ = ["archive", "compact"]

OnProgress = Callable[[object], None]
"""Called, with anything, whenever the task makes progress."""


def archive(settings: Settings, run_seconds: float, on_progress: OnProgress) -> dict[str, Any]:
    """Make a pass every `[archive] every` for `run_seconds`, at least one, and return the result.

    Raises as `archive_through`.
    """
    end = time.monotonic() + run_seconds
    every_s = settings.archive.every_ms / 1000
    passes = 0

    def is_over() -> bool:
        return passes > 0 and time.monotonic() >= end

    iceberg = IcebergView.from_settings(settings)
    with contextlib.closing(Archiver(settings, stop=is_over, on_segment=on_progress)) as archiver:
        due = time.monotonic() + max(0.0, every_s - archiver.age_s())
        while not is_over():
            _sleep_until(min(end, due))
            due = time.monotonic() + every_s
            archiver.through(quiet_ms=QUIET_MS)
            if iceberg is not None:
                iceberg.update_or_log()
            on_progress(None)
            passes += 1
        return archiver.summary.as_dict()


def compact(settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """Compact what is worth it: what was done. Raises as `sluice.etl.history.archive.compact`."""
    return compact_files(settings, on_segment=on_progress).as_dict()


def _sleep_until(monotonic_s: float) -> None:
    while (left := monotonic_s - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))
