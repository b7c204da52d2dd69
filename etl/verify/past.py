"""The downstream at its checkpoint against the past: the state that Spark computes from a base and the archive, as of
that same moment, by other means than those that write downstream. For when there is no TiDB, or it no longer knows.

Rows are dealt to parts by their key, here as on Spark, and each part has a sum: so of a table that is the same nothing
travels but its sums, and of one that isn't the rows of the parts that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.asof import AsOfError, Past, Run, tables_as_of
from etl.asof.parted import PartSums, rows_within
from etl.base.downstream_reader import DownstreamSnapshot
from etl.base.hindrances import place_of
from etl.retain.had import had_at
from etl.settings import Settings
from etl.verify.merged import Merged, merged, merged_into
from etl.verify.rows_apart import Apart, apart, as_table
from relay import SKIP, Decision
from relay.archive import Archive
from upstream.folded import folded
from upstream.schema import Table
from upstream.table_name import TableName, exactly

__all__ = ["PAST_ZEROS", "PastCompared", "PastSide"]

PARTS = 4096
MOST_PARTS = 64
"""Of so many parts that differ the rows are looked at, a table."""
PAST_ZEROS = ("double",)
"""Kinds whose zero has its sign: a FLOAT's may have lost it on the way into a base."""

Doing = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PastCompared:
    """A table that was compared. `bytes`: of its rows in memory; `apart`: the rows that differ, None if none does;
    `more_parts`: in so many more parts rows differ, which weren't looked at.
    """

    table: Table
    rows: int
    bytes: int
    apart: Apart | None = None
    more_parts: int = 0
    others: tuple[Table, ...] = ()
    """Those that are merged with it."""


class PastSide:
    """The tables that the archive and its bases tell of at `ts` (TSO, a checkpoint). `notes` say how, `unknown` which
    tables can't be had, and why.
    """

    def __init__(self, settings: Settings, ts: int, run: Run | None = None) -> None:
        """`run`: where it is computed, Spark unless something else is given."""
        self._settings = settings
        self._run = run
        self._archive = Archive.open(settings.archive_url)
        self.ts = ts
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}

    def open(self, wanted: Callable[[str], bool] = lambda name: True) -> list[OpenPast]:
        """What can be computed of the tables whose `schema.table` is wanted; nothing is read yet. Raises errors of
        `etl.archive.archive_through`, relay errors.
        """
        units = [unit for unit in self._units(self._names()) if any(map(wanted, unit))]
        found = [self._checked(past) for past in self._pasts(units)]
        bases = sorted({base for one in found for base in one.past.bases})
        self._say(bases)
        return [one for one in found if one.tables]

    def _names(self) -> set[str]:
        bases = [*self._archive.bases.all(), None]
        return {
            name
            for base in bases
            if base is None or base.ts <= self.ts
            for name in had_at(self._settings, base, self.ts, whole=False).values()
        }

    def _units(self, names: Collection[str]) -> list[tuple[str, ...]]:
        """Each name by itself, those that are merged together."""
        found: dict[tuple[str, str], list[str]] = {}
        for name in sorted(names):
            target = merged_into(self._settings, *TableName.parse(name))
            found.setdefault(target or ("", name), []).append(name)
        return [tuple(unit) for unit in found.values()]

    def _pasts(self, units: Sequence[tuple[str, ...]]) -> Iterator[Past]:
        """All together if that can be; else each by itself, so that one that can't hinders no other."""
        if not units:
            return
        try:
            yield self._past([name for unit in units for name in unit])
            return
        except AsOfError:
            pass
        for unit in units:
            try:
                yield self._past(unit)
            except AsOfError as error:
                self.unknown |= dict.fromkeys(unit, str(error))

    def _past(self, names: Sequence[str]) -> Past:
        globs = [exactly(name) for name in names]
        return tables_as_of(self._settings, self.ts, globs, ignored=self._ignored(), run=self._run)

    def _decided(self) -> list[Decision]:
        return self._archive.decisions_of(self._settings.open_relay().pipeline).list(0, self.ts)

    def _ignored(self) -> Collection[int]:
        """What isn't downstream as operators, or the settings, said."""
        skipped = {one.commit_ts for one in self._decided() if one.action == SKIP}
        return skipped | self._settings.ignored_ts

    def _decided_tables(self) -> dict[int, int]:
        """The ids of tables that a DDL is about of which operators decided, with its commit timestamp."""
        log = self._archive.log
        return {
            int(table_id): one.commit_ts
            for one in self._decided()
            for window in log.windows(one.commit_ts - 1, one.commit_ts)
            for ddl in window.ddls
            if ddl["commit_ts"] == one.commit_ts
            for table_id in ddl["effect"]["tables"]
        }

    def _checked(self, past: Past) -> OpenPast:
        """Without tables of which nothing tells what they hold downstream."""
        decided = self._decided_tables()
        tables = {one.table.id: one.table for one in past.tables.values()}
        groups = {group.tables[0].full_name: group for group in merged(self._settings, tables.values())}
        together = {table.full_name for group in groups.values() for table in group.tables}
        for name, one in past.tables.items():
            if name in together:
                continue
            place = place_of(self._settings, one.table)
            if isinstance(place, str):
                self.unknown[name] = place
            else:
                groups[name] = Merged((one.table,), place.schema, place.name)
        left: dict[str, Merged] = {}
        for name, group in groups.items():
            about = [decided[table.id] for table in group.tables if table.id in decided]
            why = f"operators decided about the DDL at {about[0]}" if about else group.unlike()
            if why:
                self.unknown |= dict.fromkeys((table.full_name for table in group.tables), why)
            else:
                left[name] = group
        return OpenPast(past, left)

    def _say(self, bases: Sequence[str]) -> None:
        made_from = [f"{base} ({self._archive.bases.get(base).made_from})" for base in bases]
        self.notes.append(
            "compared with what Spark computes from the archive"
            f"{' and the bases ' + ', '.join(made_from) if made_from else ''}, not with TiDB: what differed between the"
            " upstream and these before can't be seen"
        )
        if any(self._archive.bases.get(base).made_from.startswith("the downstream") for base in bases):
            self.notes.append("a base was made from the downstream itself: what was wrong there already is in it, too")


@dataclass(frozen=True, slots=True)
class OpenPast:
    """Tables that are computed together, by the full name of the first of those that are merged."""

    past: Past
    tables: Mapping[str, Merged]

    def compare(self, snapshot: DownstreamSnapshot, doing: Doing) -> Iterator[PastCompared]:
        """Each table, over the snapshot's first session. `doing` is told what is done, and may raise. Raises AsOfError,
        RemovedError, SparkError, BaseError, DownstreamError, relay errors.
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
                yield PastCompared(group.tables[0], *sizes[name], others=group.tables[1:])
        if wrong:
            yield from self._look(snapshot, wrong, sizes, doing)

    def _look(
        self, snapshot: DownstreamSnapshot, wrong: Mapping[str, list[int]], sizes: Mapping[str, tuple[int, int]],
        doing: Doing,
    ) -> Iterator[PastCompared]:  # fmt: skip
        """At the rows of the parts that differ."""
        doing(f"computing the rows that differ in {len(wrong)} tables")
        first = {table.full_name: name for name in wrong for table in self.tables[name].tables}
        theirs: dict[str, list[pa.RecordBatch]] = {name: [] for name in wrong}
        for name, batch in self.past.part_rows(PARTS, {one: wrong[of][:MOST_PARTS] for one, of in first.items()}):
            theirs[first[name]].append(_named_as(self.tables[first[name]].tables[0], batch))
        for name, parts in wrong.items():
            doing(f"reading the rows that differ in {name}")
            group = self.tables[name]
            table, looked_at = group.tables[0], parts[:MOST_PARTS]
            mine = [rows_within(table, batch, PARTS, looked_at) for batch in snapshot.rows(0, group.place)]
            downstream = as_table(table, [batch for rows in mine for batch in rows.to_batches()])
            found = apart(table, as_table(table, theirs[name]), downstream, PAST_ZEROS)
            yield PastCompared(table, *sizes[name], found, len(parts) - len(looked_at), group.tables[1:])


def _named_as(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the names that the columns have in `table`, which may be spelled otherwise."""
    names = {folded(column.name): column.name for column in table.columns}
    return batch.rename_columns([names.get(folded(name), name) for name in batch.schema.names])
