"""Summarize the outcome of a restore into files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.etl.restore.files_folder import RestoredFile
from sluice.relay.jobs import DONE

__all__ = ["FilesSummary"]


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """The folder's content, and how many tables this run has `made`, with its seconds.

    `state`: DONE, PAUSED or CANCELLED; `left`: what a cancelled one left.
    """

    job: str
    until: int
    folder: Path
    tables: tuple[RestoredFile, ...]
    made: int
    state: str = DONE
    seconds: float = 0.0
    left: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without what the manifest has of each table."""
        return {
            "until": self.until,
            "folder": str(self.folder),
            "tables": len(self.tables),
            "rows": self.rows,
            "made": self.made,
            "seconds": self.seconds,
        }
