"""The observer of a replayed recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.devstack.progress_view import ReplicationProgress
from sluice.devstack.recording import SnapshotLabel

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts as CopyProgress


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A quality report.

    `text` has its figures and place, `failures` each expectation that fails the run.
    """

    text: str
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observer:
    """`report` gets lines of text.

    `show` gets, several times a second, the snapshot that comes next, how many transactions came
    with the copy, and how far replication is; `show_copy` how far a copy is, and what it is of:
    "copy", "restore".
    """

    report: Callable[[str], None]
    show: Callable[[SnapshotLabel, int, ReplicationProgress], None]
    show_copy: Callable[[CopyProgress, str], None]
    quality: Callable[[Path], QualityReport] | None = None
    """Proposes expectations of what is downstream and checks whether they are met.

    Takes the pipeline's settings file.
    """
