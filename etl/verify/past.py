"""The downstream at its checkpoint against the past: the state that Spark computes from a base and the archive, as of
that same moment, by other means than those that write downstream. For when there is no TiDB, or it no longer knows.

Rows are dealt to parts by their key, here as on Spark, and each part has a sum: so of a table that is the same nothing
travels but its sums, and of one that isn't the rows of the parts that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.asof import AsOfError, AsOfTable, Past, Run, tables_as_of
from etl.asof.parted import PartSums, rows_within
from etl.base.downstream_reader import DownstreamSnapshot
from etl.base.downstream_rows import DownstreamTable
from etl.base.hindrances import place_of
from etl.retain.had import had_at
from etl.settings import Settings
from etl.verify.rows_apart import Apart, apart, as_table
from relay import SKIP, Decision
from relay.archive import Archive
from upstream.schema import Table

__all__ = ["PAST_ZEROS", "PastCompared", "PastSide"]

PARTS = 4096
MOST_PARTS = 64
"""Of so many parts that differ the rows are looked at, a table."""
PAST_ZEROS = ("double",)
"""Kinds whose zero has its sign: a FLOAT's may have lost it on the way into a base."""
_LIKE = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})

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
        names = sorted(name for name in self._names() if wanted(name))
        found = [self._checked(past) for past in self._pasts(names)]
        bases = sorted({base for one in found for base in one.past.bases})
        self._say(bases)
        return [one for one in found if one.tables]

    def _names(self) -> set[str]:
        bases = [*self._archive.bases.all(), None]
        return {
            name
            for base in bases
            if base is None or base.ts <= self.ts
            for name in had_at(self._settings, base, self.ts).values()
        }

    def _pasts(self, names: Sequence[str]) -> Iterator[Past]:
        """All together if that can be; else each by itself, so that one that can't hinders no other."""
        if not names:
            return
        try:
            yield self._past(names)
            return
        except AsOfError:
            pass
        for name in names:
            try:
                yield self._past([name])
            except AsOfError as error:
                self.unknown[name] = str(error)

    def _past(self, names: Sequence[str]) -> Past:
        globs = [name.translate(_LIKE) for name in names]
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
        left: dict[str, AsOfTable] = {}
        decided = self._decided_tables()
        for name, one in past.tables.items():
            if one.table.id in decided:
                self.unknown[name] = f"operators decided about the DDL at {decided[one.table.id]}"
            elif isinstance(place := place_of(self._settings, one.table), str):
                self.unknown[name] = place
            else:
                left[name] = one
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
    """Tables that are computed together."""

    past: Past
    tables: Mapping[str, AsOfTable]

    def compare(self, settings: Settings, snapshot: DownstreamSnapshot, doing: Doing) -> Iterator[PastCompared]:
        """Each table, over the snapshot's first session. `doing` is told what is done, and may raise. Raises AsOfError,
        RemovedError, SparkError, BaseError, DownstreamError, relay errors.
        """
        doing(f"computing what {len(self.tables)} tables were")
        expected = self.past.part_sums(PARTS)
        wrong: dict[str, list[int]] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for name, one in self.tables.items():
            doing(f"reading {name}")
            table = one.table
            sums, size = PartSums(PARTS), 0
            for batch in snapshot.rows(0, _place(settings, table)):
                sums.add(table, batch)
                size += batch.nbytes
            sizes[name] = sums.rows, size
            if parts := sums.differing(expected[name]):
                wrong[name] = parts
            else:
                yield PastCompared(one.table, *sizes[name])
        if wrong:
            yield from self._look(settings, snapshot, wrong, sizes, doing)

    def _look(
        self, settings: Settings, snapshot: DownstreamSnapshot, wrong: Mapping[str, list[int]],
        sizes: Mapping[str, tuple[int, int]], doing: Doing,
    ) -> Iterator[PastCompared]:  # fmt: skip
        """At the rows of the parts that differ."""
        wanted = {name: parts[:MOST_PARTS] for name, parts in wrong.items()}
        doing(f"computing the rows that differ in {len(wanted)} tables")
        theirs: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
        for name, batch in self.past.part_rows(PARTS, wanted):
            theirs[name].append(batch)
        for name, parts in wanted.items():
            doing(f"reading the rows that differ in {name}")
            table = self.tables[name].table
            mine = [rows_within(table, batch, PARTS, parts) for batch in snapshot.rows(0, _place(settings, table))]
            downstream = as_table(table, [batch for rows in mine for batch in rows.to_batches()])
            found = apart(table, as_table(table, theirs[name]), downstream, PAST_ZEROS)
            yield PastCompared(table, *sizes[name], found, len(wrong[name]) - len(parts))


def _place(settings: Settings, table: Table) -> DownstreamTable:
    target = settings.routes.target(table.schema_name, table.name)
    return DownstreamTable(table, target.schema, target.table)
