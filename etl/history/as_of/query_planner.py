"""Plan a query from the newest snapshot that helps, or from where tables begin in the log."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.etl.history.as_of.history import read_history
from sluice.etl.history.as_of.lineage import StartTooLateError, table_groups
from sluice.etl.history.as_of.read_planner import SnapshotStart, make_time_travel_plan
from sluice.etl.history.as_of.read_tasks import TimeTravelPlan
from sluice.etl.history.as_of.versions import TableVersion
from sluice.etl.history.errors import AsOfError
from sluice.relay import WindowLog
from sluice.relay.archive import ArchiveLog
from sluice.tidb import tso
from sluice.tidb.schema import Table
from sluice.tidb.table_name import exactly


@dataclass(frozen=True, slots=True)
class AsOfTable:
    """A table as it was at a moment.

    Its definition, and `left_out`, stored generated columns whose values are unknown, as the
    snapshot doesn't hold what a database computes itself.
    """

    table: Table
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query with its plan."""

    plans: tuple[TimeTravelPlan, ...]
    """One for each snapshot that tables begin with, and one for those that begin in the log."""
    tables: Mapping[int, Mapping[str, AsOfTable]]
    """The tables by moment (TSO) and name."""
    versions: Mapping[int, Mapping[str, TableVersion]]
    """The same, with what the columns are."""
    start_ts: int
    """The TSO that the log is read from."""
    snapshots: tuple[int, ...] = ()
    """The timestamps (TSO) of the snapshots that are read."""
    skipped: tuple[int, ...] = ()
    """Transactions that landing left out by override, or that are ignored: their changes are
    missing.
    """


def plan_query(
    log: WindowLog, snapshots: Iterable[SnapshotStart], moments: Sequence[int],
    names: Sequence[str], ignored: Collection[int] = (),
) -> PlannedQuery:  # fmt: skip
    """Return the plans for tables (`schema.table`, also with * and ?) at moments (TSO).

    `snapshots` from the newest to the oldest, none after the first moment: each table begins with
    the newest that helps, or in the log. `ignored`: commit timestamps of transactions to be left
    out. Raises AsOfError, relay errors.
    """
    asking = _QueryPlanner(log, tuple(sorted(set(moments))), frozenset(ignored))
    left: Sequence[str] = names
    tried: list[SnapshotStart] = []
    for snapshot in itertools.chain(snapshots, [None]):
        missing = asking.begin(snapshot, left)
        if not missing:
            return asking.asked()
        tried += [snapshot] if snapshot is not None else []
        left = [exactly(name) for name in sorted(missing)]
    for snapshot in tried:  # without columns of unknown values
        missing = asking.begin(snapshot, left, may_lack=True)
        if not missing:
            return asking.asked()
        left = [exactly(name) for name in sorted(missing)]
    raise next(error for named, error in asking.refused.items() if named & missing)


class _QueryPlanner:
    def __init__(self, log: WindowLog, moments: tuple[int, ...], ignored: frozenset[int]) -> None:
        self._log = log
        self._moments = moments
        self._ignored = ignored
        self._plans: list[tuple[int, TimeTravelPlan]] = []
        self._snapshots: list[int] = []
        self._skipped: set[int] = set()
        self.refused: dict[frozenset[str], StartTooLateError] = {}

    def begin(
        self, snapshot: SnapshotStart | None, names: Sequence[str], *, may_lack: bool = False
    ) -> set[str]:
        """Plan what can begin there; the names of the tables that can't.

        `may_lack`: values of stored generated columns. Raises AsOfError, relay errors.
        """
        first = self._log.first()
        if (
            snapshot is None
            and first is not None
            and self._moments[0] < first.lo
            and not (self._plans or self.refused)
        ):
            raise AsOfError(
                f"{tso.text(self._moments[0])} lies before {self._log.url} begins, and there is no"
                " snapshot of before",
                hint=f"ask for a moment from {tso.text(first.lo)} on: that is the earliest",
            )
        start_ts = snapshot.ts if snapshot is not None else (first.lo if first is not None else 0)
        until_ts = self._moments[-1]
        known = snapshot.tables if snapshot is not None else None
        history = read_history(self._log, start_ts, known, until_ts, self._moments)
        history.may_lack = may_lack
        if snapshot is not None:
            history.brings = snapshot.source.brings
        wanted = {moment: history.find(moment, names) for moment in self._moments}
        missing = {
            *history.skipped,
            *(ts for ts in self._ignored if ts < 0 or start_ts < ts <= until_ts),
        }
        found, refused = table_groups(history, wanted, is_whole=not missing)
        if found:
            ids = {table_id for family in found for table_id in family.ids}
            log = self._log.for_tables(ids) if isinstance(self._log, ArchiveLog) else self._log
            try:
                plan = make_time_travel_plan(log, start_ts, until_ts, found, snapshot)
            except StartTooLateError as error:
                refused[frozenset(name for family in found for name in family.names)] = error
            else:
                self._plans.append((start_ts, replace(plan, ignored=self._ignored)))
                self._snapshots += [snapshot.ts] if snapshot is not None else []
                self._skipped |= missing
        self.refused = refused | self.refused
        return {name for named in refused for name in named}

    def asked(self) -> PlannedQuery:
        """Return all of it together."""
        versions: dict[int, dict[str, TableVersion]] = {moment: {} for moment in self._moments}
        for _, plan in self._plans:
            for buckets in plan.families:
                for moment, names in buckets.family.results.items():
                    versions[moment] |= {
                        name: buckets.family.version_at(moment, name) for name in names
                    }
        tables = {
            moment: {n: _table(v) for n, v in sorted(own.items())}
            for moment, own in versions.items()
        }
        start_ts = min((at for at, _ in self._plans), default=self._moments[0])
        plans = tuple(plan for _, plan in self._plans)
        return PlannedQuery(
            plans, tables, versions, start_ts, tuple(self._snapshots), tuple(sorted(self._skipped))
        )


def _table(version: TableVersion) -> AsOfTable:
    left_out = tuple(c.name for c in version.table.stored_columns if c.name not in version.labels)
    return AsOfTable(version.table, left_out)
