"""Define the request for a reapply (windows, tables, target), and the summary of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sluice.etl.changes.rules import only_tables
from sluice.etl.settings import Settings, with_target
from sluice.relay.json_codec import JsonDocument


@dataclass(frozen=True, slots=True)
class ReplayRequest(JsonDocument):
    """A request to apply a past range again: what was committed after `since` through `until`.

    They are TSO; `until` 0: all that is landed at the request. `tables`: globs, () for all that the
    rules want. `target`: see `sluice.etl.settings.read_target`. `rows_per_second`: 0 for no limit.
    Without a target it is a repair: the rows that were touched become in the pipeline's own
    downstream what they are upstream.
    """

    KIND: ClassVar = "reapply"
    """Kind of the jobs that do it."""
    JSON_COMPLETE: ClassVar = True

    since: int
    until: int
    target: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    rows_per_second: int = 0

    @property
    def is_repair(self) -> bool:
        """Return whether it is for the pipeline's own downstream."""
        return not self.target

    def settings(self, pipeline: Settings) -> Settings:
        """Return the pipeline's settings with the other downstream and its rules.

        Only these tables are wanted, and one session writes. For a repair only the tables are
        narrowed. Raises SettingsError.
        """
        if self.is_repair:
            return replace(pipeline, filters=only_tables(pipeline.filters, self.tables))
        own = with_target(pipeline, self.target)
        rows = min(own.apply.max_rows, self.rows_per_second or own.apply.max_rows)
        limits = replace(own.apply, mode="atomic", max_rows=rows)
        return replace(own, apply=limits, filters=only_tables(own.filters, self.tables))


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Outcome of a reapply. `through` (TSO): how far the sink is. Counts are of this process."""

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
