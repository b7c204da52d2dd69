"""Estimate how long a restore takes and how much room it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from sluice.etl.restore.plan import RestoreCost
from sluice.etl.restore.request import RestoreRequest
from sluice.relay.jobs import DONE, Job

__all__ = ["TimeEstimate"]


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds, on two cores that MariaDB has a part of; see docs/reference/performance/jobs.md."""

    a_row: float = 1.5e-6
    """Seconds per row of the snapshot, with its indexes."""
    a_byte: float = 7.0e-9
    """Seconds per byte of the snapshot's rows in memory."""
    a_change: float = 1.9e-6
    verified: float = 1.2e-6
    """A row or a change, once more by Spark."""
    a_job: float = 1.5
    """However little there is to do."""
    a_verification: float = 3.0
    """Seconds per verification: a Spark session, whose workers start."""

    @classmethod
    def from_last_restore(cls, jobs: Iterable[Job]) -> Self:
        """Take the pace of this pipeline's last restore, if that was large enough to measure it."""
        made = cls()
        for job in jobs:
            if (
                job.spec.kind == RestoreRequest.KIND
                and (entry := job.entry()).state == DONE
                and entry.result
            ):
                made = made._learned(entry.result.get("pace") or {})
        return made

    def _learned(self, found: Mapping[str, Any]) -> Self:
        known = asdict(self)
        return type(self)(
            **{**known, **{name: float(value) for name, value in found.items() if name in known}}
        )

    def seconds(self, rows: int, size: int, changes: int, *, verify: bool) -> float:
        """Return the seconds for `rows` of a snapshot (`size` bytes in memory) and `changes`."""
        loading = rows * self.a_row + size * self.a_byte
        verifying = self.a_verification + (rows + changes) * self.verified if verify else 0.0
        return self.a_job + loading + changes * self.a_change + verifying

    def verifying_s(self, cost: RestoreCost) -> float:
        """Return the seconds that verifying takes. Spark does it, not the database."""
        return self.a_verification + (cost.snapshot_rows + cost.changes) * self.verified

    def applying_work(self, cost: RestoreCost, copied: int) -> int:
        """Return how many bytes of the snapshot are loaded in the time that applying takes.

        `copied`: the snapshot's bytes, and what its indexes take.
        """
        loading = cost.snapshot_rows * self.a_row + cost.snapshot_bytes * self.a_byte
        applying = cost.changes * self.a_change
        if copied and loading:
            per_s = copied / loading
        elif cost.log_bytes and applying:
            per_s = cost.log_bytes / applying
        else:
            return 0
        return round(applying * per_s)
