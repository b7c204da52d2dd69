"""Plan a copy: which tables go where, in which chunks, and what hinders it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sluice.etl.changes.formats.table_fallbacks import zone_dependent_columns
from sluice.etl.changes.rules import (
    ColumnRuleError,
    Filter,
    RouteError,
    Routes,
    RowRuleError,
    RowSelection,
    with_source_column,
    without_source_column,
)
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.selected_rows import conditions_of
from sluice.etl.copy.source import FindsSharedKeys, RowSource, SourceChunk
from sluice.etl.display_units import counted
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate, fits, full_name, suggestion

_LARGE_CHUNK_BYTES = 128 << 20
_ESTIMATED_BYTES_PER_S = 30_000_000
"""Bytes/s that two cores copy, MariaDB among them; see docs/reference/performance/jobs.md."""


@dataclass(frozen=True, slots=True)
class PlannedTable(JsonDocument):
    """A table to be copied to `schema`.`name` downstream.

    `merged`: others are copied there, too. `brought`: the stored generated columns whose values
    come with the rows. `where`: conditions of row rules that the copied rows meet.
    """

    table: Table
    schema: str
    name: str
    merged: bool
    bytes: int
    brought: tuple[str, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Return `schema.table` downstream."""
        return full_name(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class CopyPlan(JsonDocument):
    """A plan, whose chunks are numbered by their places in `chunks`.

    A chunk belongs to the table at its place of `of_table`. `problems` hinder the copy; `notes`
    are for people to know. `rowless` names the views, sequences and temporary tables that are made
    as the upstream has them.
    """

    JSON_COMPLETE: ClassVar = True

    ts: int
    schema_version: int
    tables: tuple[PlannedTable, ...] = ()
    chunks: tuple[SourceChunk, ...] = ()
    of_table: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    rowless: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """About how much there is to read."""
        return sum(chunk.bytes for chunk in self.chunks)

    def lines(self) -> list[str]:
        """Return the plan as lines for people."""
        found = [f"position {self.ts} ({tso.to_datetime(self.ts):%Y-%m-%d %H:%M:%S} UTC)"]
        counts = Counter(self.of_table)
        for place, planned in enumerate(self.tables):
            source = planned.table.full_name
            goal = "" if planned.target == source else f" to {planned.target}"
            found.append(f"copy     {source}{goal}: {_extent_text(planned.bytes, counts[place])}")
        tables = counted(len(self.tables), "table")
        found.append(
            f"in all   {tables}:"
            f" {_extent_text(sum(t.bytes for t in self.tables), len(self.chunks))}"
        )
        if self.bytes > _ESTIMATED_BYTES_PER_S:
            minutes, seconds = divmod(round(self.bytes / _ESTIMATED_BYTES_PER_S), 60)
            found.append(
                f"takes    about {minutes} min {seconds} s at {_ESTIMATED_BYTES_PER_S // 1_000_000}"
                " MB/s, as two cores do it"
            )
        if self.rowless:
            found.append(
                "note     views, sequences and temporary tables are made as the upstream has them:"
                f" {', '.join(self.rowless)}"
            )
        return [
            *found,
            *(f"note     {one}" for one in self.notes),
            *(f"stops    {one}" for one in self.problems),
        ]


def make_copy_plan(
    source: RowSource,
    definitions: SourceSchema,
    filters: Filter,
    routes: Routes,
    globs: Sequence[str] = (),
) -> CopyPlan:
    """Plan a copy of all that the rules want, or of what matches one of `globs` (``schema.table``).

    Raises CopyError when not even that can be known.
    """
    return _CopyPlanner(source, definitions, filters, routes, globs).plan()


class _CopyPlanner:
    def __init__(
        self,
        source: RowSource,
        definitions: SourceSchema,
        filters: Filter,
        routes: Routes,
        globs: Sequence[str],
    ) -> None:
        self._source = source
        self._definitions = definitions
        self._filters = filters
        self._routes = routes
        self._globs = globs
        self._held = {estimate.full_name: estimate for estimate in source.tables()}
        self._problems: list[str] = []
        self._notes: list[str] = []

    def plan(self) -> CopyPlan:
        wanted = [
            t for t in self._definitions.tables if self._filters.wants_table(t.schema_name, t.name)
        ]
        there = [t for t in wanted if t.is_base_table]
        self._check_missing(there)
        self._check_unknown()
        dumped = self._source.spec()["kind"] == "dumpling"
        if dumped and any(column.kind == "timestamp" for t in there for column in t.columns):
            self._notes.append("TIMESTAMPs are taken for UTC: a dump has no time zone of its own")
        chosen = [t for t in there if t.full_name in self._held and self._matches(t.full_name)]
        for glob in self._globs:
            if not any(fits(t.full_name, glob) for t in chosen):
                self._problems.append(
                    f"--table {glob}: no table of the source that the rules want has such a name"
                    f"{suggestion(glob, [t.full_name for t in there])}"
                )
        if not chosen and not self._problems:
            self._problems.append(
                f"{self._source.describe()} holds no table that the rules want: there is nothing to"
                " copy"
            )
        tables = [planned for table in chosen if (planned := self._planned(table)) is not None]
        chunks, of_table = self._chunks(tables)
        self._check_shared_keys(tables)
        return CopyPlan(
            self._definitions.ts,
            self._definitions.schema_version,
            tuple(tables),
            tuple(chunks),
            tuple(of_table),
            tuple(self._problems),
            tuple(self._notes),
            tuple(t.full_name for t in wanted if not t.is_base_table),
        )

    def _matches(self, name: str) -> bool:
        return not self._globs or any(fits(name, glob) for glob in self._globs)

    def _check_missing(self, wanted: Sequence[Table]) -> None:
        missing = [
            t.full_name
            for t in wanted
            if t.full_name not in self._held and self._matches(t.full_name)
        ]
        if missing:
            self._problems.append(
                f"{self._source.describe()} doesn't hold {abbreviate(missing)}, which the rules"
                " want downstream: replication would meet rows of tables that aren't there. Leave"
                " them out with [filter] (ignore-table, ignore-schemas, replicate-do-db), or dump"
                " all of them"
            )
        left = [t.full_name for t in wanted if not self._matches(t.full_name)]
        if left:
            self._notes.append(
                f"not copied, as no --table names them: {abbreviate(left)}. Replication will stop"
                " at their first row unless [filter] leaves them out, or they are there already"
            )

    def _check_unknown(self) -> None:
        known = {table.full_name for table in self._definitions.tables}
        unknown = [
            e.full_name
            for e in self._held.values()
            if e.full_name not in known and self._filters.wants_table(e.schema, e.table)
        ]
        if unknown:
            self._problems.append(
                f"the upstream had no {abbreviate(unknown)} at {self._definitions.ts}: is"
                f" {self._source.describe()} of another cluster?"
            )

    def _planned(self, table: Table) -> PlannedTable | None:
        try:
            self._source.check_schema(table)
            target = self._routes.target(table.schema_name, table.name)
            selection = self._filters.row_selection(table)
            narrowed = self._filters.narrowed(table)
            shaped = with_source_column(narrowed, target)
        except (ColumnRuleError, CopyError, RouteError, RowRuleError) as error:
            self._problems.append(str(error))
            return None
        if narrowed is not table:
            self._note_columns(table, is_merged=target.is_merged)
        size = self._held[table.full_name].bytes
        brought = tuple(sorted(self._source.brings(narrowed)))
        if selection is not None:
            self._note_selection(table, selection, brought)
        where = conditions_of(selection)
        return PlannedTable(
            shaped, target.schema, target.table, target.is_merged, size, brought, where
        )

    def _check_shared_keys(self, tables: Sequence[PlannedTable]) -> None:
        """Find rows of tables that are mixed downstream which can't be there both."""
        source, mixed = self._source, dict[str, list[Table]]()
        if not isinstance(source, FindsSharedKeys):
            return
        for planned in tables:
            if planned.merged and planned.table.source_column is None:
                mixed.setdefault(planned.target, []).append(planned.table)
        for target, own in mixed.items():
            for found in source.shared_keys(own) if len(own) > 1 else ():
                both = f"{found.one.full_name} and {found.other.full_name}"
                names = ", ".join(found.columns)
                if found.key:
                    self._problems.append(
                        f"{both} have both a row with the key ({names}) = ({found.key}), and are"
                        f" merged in {target}. `source-column` of the [[route]] keeps them apart"
                    )
                else:
                    self._notes.append(
                        f"{both} are merged in {target}: whether they share a key ({names}) isn't"
                        " known. If they do, the copy stops at it"
                    )

    def _note_columns(self, table: Table, *, is_merged: bool) -> None:
        rules = self._filters.column_rules(table.schema_name, table.name)
        texts = " and ".join(rule.text for rule in rules)
        if is_merged:
            effects = " and ".join(rule.effect for rule in rules)
            self._problems.append(
                f"{table.full_name}: {effects}, and the table is merged with others"
            )
        self._notes.append(f"{table.full_name}: its columns are copied as {texts} leaves them")

    def _note_selection(
        self, table: Table, selection: RowSelection, brought: Sequence[str]
    ) -> None:
        lacking = [c.name for c in selection.columns if c.generated and c.name not in brought]
        if lacking:
            self._problems.append(
                f"{table.full_name}: {selection.rules[0].text} selects rows by"
                f" {', '.join(lacking)}, of which the source has no values. Name the columns that"
                " it is computed from in the rule"
            )
        self._notes.append(
            f"{table.full_name}: only the rows that {selection.rules[0].text} selects are copied"
        )

    def _chunks(self, tables: list[PlannedTable]) -> tuple[list[SourceChunk], list[int]]:
        chunks: list[SourceChunk] = []
        of_table: list[int] = []
        # Wide tables first: what separates their fields, narrow ones may not show.
        for place in sorted(
            range(len(tables)), key=lambda n: -len(tables[n].table.writable_columns)
        ):
            planned = tables[place]
            try:
                found = self._source.chunks(without_source_column(planned.table))
            except CopyError as error:
                self._problems.append(str(error))
                continue
            self._notes += [
                f"{chunk.full_name}: {chunk.place.get('file', 'a range of its key')} is one chunk"
                f" of about {chunk.bytes / 1e6:,.0f} MB, so one transaction downstream: smaller"
                " files (dumpling -F 256MiB), or plain ones, are safer"
                for chunk in found
                if chunk.bytes > _LARGE_CHUNK_BYTES
            ]
            if not tables[place].bytes:
                tables[place] = replace(tables[place], bytes=sum(chunk.bytes for chunk in found))
            chunks += [replace(chunk, where=planned.where) for chunk in found]
            of_table += [place] * len(found)
            if found and (
                lacking := [
                    n for n in zone_dependent_columns(planned.table) if n not in planned.brought
                ]
            ):
                self._problems.append(without_values(planned.table, lacking))
        return chunks, of_table


def _extent_text(size: int, chunks: int) -> str:
    """Describe how much there is to copy.

    TiDB without statistics has no sizes, and a table may have no rows.
    """
    unit, power = next(
        ((unit, power) for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)) if size >= 10**power),
        ("B", 0),
    )
    shown = f"{size / 10**power:,.1f}" if power else f"{size}"
    in_chunks = counted(chunks, "chunk")
    return f"about {shown} {unit} in {in_chunks}" if size else in_chunks


def without_values(table: Table, columns: Sequence[str]) -> str:
    """Return why generated columns that the downstream can't compute stop a copy."""
    return (
        f"{table.full_name}: {', '.join(columns)} would be plain columns downstream, as another"
        " server may compute them in another way than TiDB, and the source has no values of"
        " theirs. Leave the table out with [filter] ignore-table; or bring it by other means"
    )
