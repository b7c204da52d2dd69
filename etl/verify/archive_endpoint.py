"""Compare the downstream at its checkpoint with the state that Spark computes from the archive.

Spark computes from a snapshot and the archive, as of that same moment, by other means than those
that write downstream. For when there is no TiDB, or it no longer has that moment.

Rows are distributed to parts by their key, here as on Spark, and each part has a sum. So of a table
that is the same only its sums are transferred, and of one that differs the rows of the parts that
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.history.as_of import AsOfError, PlanExecutor, TimeTravelQuery, tables_as_of
from sluice.etl.history.as_of.hash_partitions import PartSums, rows_of_parts
from sluice.etl.history.retain.status import tables_restorable_at
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings import Settings
from sluice.etl.verify.merged_tables import MergedTable, merged_into, merged_tables
from sluice.etl.verify.row_diff import RowDiff, as_table, diff_rows
from sluice.relay import SKIP, Override
from sluice.relay.archive import Archive
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import TableName, exactly

__all__ = ["ARCHIVE_ZERO_KINDS", "ArchiveComparison", "ArchiveEndpoint"]

PARTS = 4096
MAX_DIFFERING_PARTS = 64
"""The most differing parts of a table of which rows are read."""
ARCHIVE_ZERO_KINDS = ("double",)
"""Kinds whose zero has its sign: a FLOAT's may have lost it on the way into a snapshot."""

OnActivity = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ArchiveComparison:
    """A table that was compared.

    `bytes`: of its rows in memory; `diff_rows`: the rows that differ, None if none does;
    `more_parts`: the number of further parts in which rows differ, and which weren't read.
    """

    table: Table
    rows: int
    bytes: int
    apart: RowDiff | None = None
    more_parts: int = 0
    others: tuple[Table, ...] = ()
    """Tables that routes merge with it."""


class ArchiveEndpoint:
    """The tables that archive and snapshots hold at `ts` (TSO, a checkpoint).

    `notes` describe how they are computed, `unknown` the tables that can't be, and why.
    """

    def __init__(self, settings: Settings, ts: int, run: PlanExecutor | None = None) -> None:
        """Prepare the endpoint; `run` executes what is computed, Spark by default."""
        self._settings = settings
        self._run = run
        self._archive = Archive.open(settings.archive_url)
        self.ts = ts
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}

    def open(self, wanted: Callable[[str], bool] = lambda name: True) -> list[ArchiveTables]:
        """Return what can be computed of the wanted tables (`schema.table`); nothing is read yet.

        Raises errors of `sluice.etl.history.archive.archive_through`, relay errors.
        """
        units = [unit for unit in self._units(self._names()) if any(map(wanted, unit))]
        found = [self._checked(past) for past in self._queries(units)]
        snapshots = sorted({snapshot for one in found for snapshot in one.past.snapshots})
        self._add_note(snapshots)
        return [one for one in found if one.tables]

    def _names(self) -> set[str]:
        snapshots = [*self._archive.snapshots.all(), None]
        return {
            name
            for snapshot in snapshots
            if snapshot is None or snapshot.ts <= self.ts
            for name in tables_restorable_at(
                self._settings, snapshot, self.ts, whole=False
            ).values()
        }

    def _units(self, names: Collection[str]) -> list[tuple[str, ...]]:
        """Return each name by itself, those that are merged together."""
        found: dict[tuple[str, str], list[str]] = {}
        for name in sorted(names):
            target = merged_into(self._settings, *TableName.parse(name))
            found.setdefault(target or ("", name), []).append(name)
        return [tuple(unit) for unit in found.values()]

    def _queries(self, units: Sequence[tuple[str, ...]]) -> Iterator[TimeTravelQuery]:
        """Yield one query for all tables if that is possible.

        Else each by itself, so that one that can't hinders no other.
        """
        if not units:
            return
        try:
            yield self._query([name for unit in units for name in unit])
            return
        except AsOfError:
            pass
        for unit in units:
            try:
                yield self._query(unit)
            except AsOfError as error:
                self.unknown |= dict.fromkeys(unit, str(error))

    def _query(self, names: Sequence[str]) -> TimeTravelQuery:
        globs = [exactly(name) for name in names]
        return tables_as_of(  # `_checked` drops tables with masked columns
            self._settings,
            self.ts,
            globs,
            ignored=self._ignored(),
            run=self._run,
            shows_values=False,
        )

    def _overridden_commits(self) -> list[Override]:
        return self._archive.overrides_of(self._settings.open_relay().pipeline).list(0, self.ts)

    def _ignored(self) -> Collection[int]:
        """Return the commits that operators or the settings keep out of the downstream."""
        skipped = {one.named for one in self._overridden_commits() if one.action == SKIP}
        return skipped | self._settings.ignored_ts

    def _overridden_tables(self) -> dict[int, int]:
        """Return the ids of tables of overridden DDL, with its commit timestamp."""
        log = self._archive.log
        return {
            int(table_id): one.commit_ts
            for one in self._overridden_commits()
            for window in log.windows(one.commit_ts - 1, one.commit_ts)
            for ddl in window.ddls
            if ddl["commit_ts"] == one.commit_ts
            for table_id in ddl["effect"]["tables"]
        }

    def _checked(self, past: TimeTravelQuery) -> ArchiveTables:
        """Drop tables whose downstream state is unknown."""
        decided = self._overridden_tables()
        tables = {one.table.id: one.table for one in past.tables.values()}
        groups = {
            group.tables[0].full_name: group
            for group in merged_tables(self._settings, tables.values())
        }
        together = {table.full_name for group in groups.values() for table in group.tables}
        for name, one in past.tables.items():
            if name in together:
                continue
            place = downstream_table_of(self._settings, one.table)
            if isinstance(place, str):
                self.unknown[name] = place
            else:
                groups[name] = MergedTable((one.table,), place.schema, place.name)
        left: dict[str, MergedTable] = {}
        for name, group in groups.items():
            about = [decided[table.id] for table in group.tables if table.id in decided]
            rules = [
                rule
                for table in group.tables
                for rule in self._settings.filters.row_rules(table.schema_name, table.name)
            ]
            why = f"an override is about the DDL at {about[0]}" if about else group.unlike()
            if rules:
                why = f"{rules[0].text} selects its rows, and the archive has all of them"
            if why:
                self.unknown |= dict.fromkeys((table.full_name for table in group.tables), why)
            else:
                left[name] = group
        return ArchiveTables(past, left)

    def _add_note(self, snapshots: Sequence[str]) -> None:
        made_from = [
            f"{snapshot} ({self._archive.snapshots.get(snapshot).made_from})"
            for snapshot in snapshots
        ]
        self.notes.append(
            "compared with what Spark computes from the"
            f" archive{' and the snapshots ' + ', '.join(made_from) if made_from else ''}, not with"
            " TiDB: what differed between the upstream and these before can't be seen"
        )
        if any(
            self._archive.snapshots.get(snapshot).made_from.startswith("the downstream")
            for snapshot in snapshots
        ):
            self.notes.append(
                "a snapshot was made from the downstream itself: what was wrong there already is in"
                " it, too"
            )


@dataclass(frozen=True, slots=True)
class ArchiveTables:
    """Tables that are computed together, by the full name of the first of those that are merged."""

    past: TimeTravelQuery
    tables: Mapping[str, MergedTable]

    def compare(self, snapshot: ConsistentReader, doing: OnActivity) -> Iterator[ArchiveComparison]:
        """Compare each table over the snapshot's first session.

        `doing` is called with each activity, and may raise. Raises AsOfError, RemovedError,
        SparkError, SnapshotError, DownstreamError, relay errors.
        """
        doing(f"computing what {len(self.tables)} tables were")
        expected = self.past.part_sums(PARTS)
        wrong: dict[str, list[int]] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for name, group in self.tables.items():
            doing(f"reading {name}")
            sums, size = PartSums(PARTS), 0
            for batch in snapshot.rows(0, group.place):
                sums.add(group.tables[0], batch)
                size += batch.nbytes
            sizes[name] = sums.rows, size
            theirs = PartSums(PARTS)
            for table in group.tables:
                theirs.add_all(expected[table.full_name])
            if parts := sums.differing(theirs):
                wrong[name] = parts
            else:
                yield ArchiveComparison(group.tables[0], *sizes[name], others=group.tables[1:])
        if wrong:
            yield from self._look(snapshot, wrong, sizes, doing)

    def _look(
        self,
        snapshot: ConsistentReader,
        wrong: Mapping[str, list[int]],
        sizes: Mapping[str, tuple[int, int]],
        doing: OnActivity,
    ) -> Iterator[ArchiveComparison]:
        """Compare the rows of the parts that differ."""
        doing(f"computing the rows that differ in {len(wrong)} tables")
        first = {table.full_name: name for name in wrong for table in self.tables[name].tables}
        theirs: dict[str, list[pa.RecordBatch]] = {name: [] for name in wrong}
        for name, batch in self.past.part_rows(
            PARTS, {one: wrong[of][:MAX_DIFFERING_PARTS] for one, of in first.items()}
        ):
            theirs[first[name]].append(_renamed_batch(self.tables[first[name]].tables[0], batch))
        for name, parts in wrong.items():
            doing(f"reading the rows that differ in {name}")
            group = self.tables[name]
            table, looked_at = group.tables[0], parts[:MAX_DIFFERING_PARTS]
            mine = [
                rows_of_parts(table, batch, PARTS, looked_at)
                for batch in snapshot.rows(0, group.place)
            ]
            downstream = as_table(table, [batch for rows in mine for batch in rows.to_batches()])
            found = diff_rows(table, as_table(table, theirs[name]), downstream, ARCHIVE_ZERO_KINDS)
            yield ArchiveComparison(
                table, *sizes[name], found, len(parts) - len(looked_at), group.tables[1:]
            )


def _renamed_batch(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns' names as `table` spells them."""
    names = {folded(column.name): column.name for column in table.columns}
    return batch.rename_columns([names.get(folded(name), name) for name in batch.schema.names])
