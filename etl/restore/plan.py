"""Define the plan of a restore, which its job keeps, and the summary of its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.etl.changes.rules import Filter
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.display_units import counted
from sluice.etl.restore.lineage import Name
from sluice.relay.jobs import DONE
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.schema import Schema, Table
from sluice.tidb.table_name import first_of

__all__ = [
    "RestoreCost",
    "RestorePlan",
    "RestoreSummary",
    "RestoreVerification",
    "whole_table_notes",
]

_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RestoreCost:
    """The cost of a restore.

    `snapshot_rows` with `snapshot_bytes` (in memory) are loaded, and `changes` applied, which lie
    in `log_bytes` of files. `disk_bytes` are needed where it is written to; `seconds` at the pace
    of the last restore, or of two cores.
    """

    snapshot_rows: int = 0
    snapshot_bytes: int = 0
    changes: int = 0
    log_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RestorePlan(JsonDocument):
    """The plan of a restore.

    `since` (TSO) is where the snapshot is, or where the log of windows begins without one.

    `snapshot` its id, "" for none. `ids` (but for those in `without_rows`) and `names` as in
    `sluice.etl.restore.lineage.RestoreGroup`.
    """

    JSON_COMPLETE: ClassVar = True

    until: int
    since: int
    snapshot: str
    cluster_id: int
    to: str
    copy: CopyPlan
    asked: tuple[Table, ...] = ()
    """The requested tables, as they are upstream at `until`."""
    others: tuple[Table, ...] = ()
    """Views and sequences, too."""
    schemas: tuple[Schema, ...] = ()
    ids: tuple[int, ...] = ()
    names: tuple[Name, ...] = ()
    without_rows: tuple[int, ...] = ()
    """Ids of tables that are made for the sake of DDL alone: their rows are gone at `until`."""
    new_schemas: tuple[str, ...] = ()
    """Databases that aren't there yet."""
    replaced: tuple[Name, ...] = ()
    """Tables that are there and go."""
    windows: int = 0
    unarchived: int = 0
    """Number of the windows that are landed and not archived yet."""
    ddls: tuple[str, ...] = ()
    cost: RestoreCost = RestoreCost()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan for people."""
        snapshot = (
            f"the snapshot {self.snapshot}, as of {tso.text(self.since)}"
            if self.snapshot
            else "no snapshot"
        )
        cost = self.cost
        found = [
            f"until    {tso.text(self.until)}",
            f"to       {self.to}",
            f"snapshot     {snapshot}"
            + ("" if self.snapshot else f": everything since {tso.text(self.since)}"),
            *(f"table    {table.full_name}" for table in (*self.asked, *self.others)),
            (
                f"load     {counted(cost.snapshot_rows, 'row')}, {cost.snapshot_bytes / 1e6:,.1f}"
                " MB, in"
                f" {counted(len(self.copy.chunks), 'chunk')}"
            ),
            f"apply    {counted(cost.changes, 'row change')} of {counted(self.windows, 'window')},"
            f" {cost.log_bytes / 1e6:,.1f} MB"
            + (f"; {self.unarchived:,} windows are archived first" if self.unarchived else ""),
            *(f"ddl      {ddl}" for ddl in first_of(self.ddls, _MAX_SHOWN)),
            f"disk     about {cost.disk_bytes / 1e6:,.0f} MB",
            f"takes    about {_duration(cost.seconds)}",
        ]
        return [
            *found,
            *(f"note     {one}" for one in self.notes),
            *(f"stops    {one}" for one in self.problems),
        ]


def whole_table_notes(filters: Filter, tables: Iterable[Table]) -> list[str]:
    """Return the tables of which the pipeline's rules leave rows or columns out downstream.

    A restore doesn't: it brings them as the upstream had them.
    """
    found = []
    for table in tables:
        names = table.schema_name, table.name
        rules = [rule.text for rule in filters.row_rules(*names)]
        rules += [rule.text for rule in filters.column_rules(*names)]
        if rules:
            found.append(
                f"{table.full_name}: restored with all rows and columns of the upstream, whatever"
                f" {' and '.join(rules)} leaves out downstream"
            )
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 1.0)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True, slots=True)
class RestoreVerification(JsonDocument):
    """Counts of how the restored tables were verified.

    `tables` with `rows` were compared with the state that Spark computes from snapshot and archive,
    and those of `with_tidb` with TiDB as of the moment; `note` names what wasn't, and why.
    """

    tables: int = 0
    rows: int = 0
    with_tidb: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class RestoreSummary(JsonDocument):
    """Outcome of a restore.

    `snapshot_rows`, `changes` and `ddls` count what this process loaded and applied; `seconds` of
    each stage, and of all. `state`: DONE, PAUSED or CANCELLED; `left`: what a cancelled one left.
    """

    job: str
    to: str
    until: int
    tables: int
    snapshot_rows: int = 0
    changes: int = 0
    ddls: int = 0
    seconds: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    verified: RestoreVerification = RestoreVerification()
    pace: Mapping[str, float] = field(default_factory=dict)
    """The measured pace of this restore, see `sluice.etl.restore.estimate`."""
    warnings: tuple[str, ...] = ()
    state: str = DONE
    left: tuple[str, ...] = ()
