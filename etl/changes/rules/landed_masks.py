"""Describe windows whose values are masked while they are landed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from sluice.etl.changes.formats.ddl_defaults import without_defaults
from sluice.etl.changes.masks import landed_column
from sluice.etl.changes.masks.landed_rows import MaskOrder, States
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.rules._ddl_rule_checks import RuleChecks
from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import Routes
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.schema import Table

__all__ = ["LandedMasks"]

_Tables = Mapping[int, Table | None]


class LandedMasks:
    """The masks of a pipeline's rules, without its other rules.

    Methods raise ColumnRuleError for a mask that doesn't fit its table, and MaskKeyError.
    """

    def __init__(self, filters: Filter) -> None:
        """Take the masks of `filters`."""
        self._filters = filters.masks_alone()
        self._shaped: dict[int, tuple[Table, Table]] = {}
        self._described: dict[int, tuple[Table, Table]] = {}

    def shaped(self, table: Table) -> Table:
        """Return an upstream's table with its masks; the same one if it has none."""
        known = self._shaped.get(table.id)
        if known is None or known[0] is not table:
            found = self._filters.narrowed(table)
            is_masked = any(column.mask for column in found.columns)
            self._shaped[table.id] = known = (table, found if is_masked else table)
        return known[1]

    def described(self, table: Table) -> Table:
        """Return an upstream's table as windows describe it whose values are masked."""
        known = self._described.get(table.id)
        if known is None or known[0] is not table:
            shaped = self.shaped(table)
            made = table
            if shaped is not table:
                columns = (landed_column(c) if c.mask else c for c in shaped.columns)
                made = replace(shaped, columns=tuple(columns))
            self._described[table.id] = known = (table, made)
        return known[1]

    def order_of(self, tables: Mapping[int, Table]) -> MaskOrder:
        """Return what is masked of rows of `tables`, by id, if no DDL is between them."""
        shaped = {i: self.shaped(table) for i, table in tables.items()}
        masked = {i: ((-1, made),) for i, made in shaped.items() if self._is_ruled(tables[i])}
        return MaskOrder(masked, frozenset(tables.keys() - masked.keys()), is_complete=False)

    def order_within(self, schema: RecordedSchema, ids: Collection[int]) -> MaskOrder:
        """Return what is masked of a window's rows of the tables `ids`; `schema`: the window's."""
        masked: dict[int, States] = {}
        others = set()
        for table_id in ids:
            states = tuple(_states(schema, table_id))
            if any(self._is_ruled(table) for _, table in states):
                masked[table_id] = tuple((after, self.shaped(table)) for after, table in states)
            elif states:
                others.add(table_id)
        return MaskOrder(masked, frozenset(others))

    def describe(self, schema: RecordedSchema) -> RecordedSchema:
        """Return a window's schema as its record has it: with masked defaults."""
        timeline = SchemaTimeline(schema)
        return replace(
            schema,
            tables=self._tables(schema.tables),
            ddls=tuple(self._ddl(ddl, timeline.before(ddl)) for ddl in schema.ddls),
            moved=tuple(self._move(move) for move in schema.moved),
        )

    def check(self, schema: RecordedSchema, is_decided: Callable[[DdlJob], bool]) -> None:
        """Check that masked values mean the same before and behind each DDL of a window.

        `is_decided`: whether an operator has decided about a DDL. Raises ScopeError.
        """
        timeline = SchemaTimeline(schema)
        for ddl in schema.ddls:
            before, after = timeline.before(ddl), dict(ddl.effect.tables)
            tables = [table for table in (*before.values(), *after.values()) if table is not None]
            rules = any(self._filters.column_rules(t.schema_name, t.name) for t in tables)
            if rules and not is_decided(ddl):
                checks = RuleChecks(ddl, before, after, self._filters, Routes())
                for table_id in after:
                    checks.check_column_rules(table_id)

    def _is_ruled(self, table: Table) -> bool:
        """Return whether a rule masks columns of a table, though perhaps none that it has yet."""
        rules = self._filters.column_rules(table.schema_name, table.name)
        return bool(rules) and table.is_base_table

    def _tables(self, tables: _Tables) -> dict[int, Table | None]:
        return {i: table and self.described(table) for i, table in tables.items()}

    def _ddl(self, ddl: DdlJob, before: Mapping[int, Table]) -> DdlJob:
        clear = [*before.values(), *(t for t in ddl.effect.tables.values() if t is not None)]
        return replace(
            ddl,
            query=self._query(ddl.query, clear),
            effect=DdlEffect(ddl.effect.schemas, self._tables(ddl.effect.tables)),
            before=self._tables(ddl.before),
        )

    def _move(self, move: FinishedRowMove) -> FinishedRowMove:
        return replace(
            move,
            before=self._tables(move.before),
            effect=DdlEffect(move.effect.schemas, self._tables(move.effect.tables)),
        )

    def _query(self, query: str, tables: Collection[Table]) -> str:
        defaults = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for table in tables
            for column, masked in zip(table.columns, self.shaped(table).columns, strict=True)
            if masked.mask
            for text in (column.default, column.origin_default)
            if text
        ]
        return without_defaults(query, defaults) if defaults else query


def _states(schema: RecordedSchema, table_id: int) -> Iterator[tuple[int, Table]]:
    """Yield a table's definitions, each with the commit_ts behind which rows are read by it."""
    first = None
    for move in schema.moved:
        first = move.before.get(table_id) or first
    first = schema.tables.get(table_id) or first
    if first is not None:
        yield -1, first
    for ddl in schema.ddls:
        table = ddl.effect.tables.get(table_id)
        if table is not None:
            yield ddl.commit_ts, table
