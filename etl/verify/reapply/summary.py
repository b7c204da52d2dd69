"""Summarize the outcome of a reapply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What was done. `through` (TSO): as far as the sink is. The counts are of this process."""

    job: str
    to: str
    since: int
    until: int
    through: int
    windows: int
    transactions: int
    changes: int
    rows: int
    ddls: int
    seconds: float
    warnings: tuple[str, ...] = ()
    repaired: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """A repair's row counts by table: `rows` compared, of them the `same`, `inserted`, `replaced`,
    `deleted`.
    """

    is_repair: bool = False

    @property
    def is_done(self) -> bool:
        """Return whether the sink has the whole range."""
        return self.through >= self.until


def consumer_of(job: str) -> str:
    """Return the consumer name by which a job pins its windows, see `sluice.relay.consumers`."""
    return f"job-{job}"
