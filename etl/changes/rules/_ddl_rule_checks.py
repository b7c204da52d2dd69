"""Check that rules for rows and columns mean the same of a table before and behind a DDL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.changes.formats.ddl_defaults import without_defaults
from sluice.etl.changes.masks import by_column, unlike
from sluice.etl.changes.rules.column_rules import (
    ColumnRule,
    ColumnRuleError,
    columns_read,
    left_out_columns,
)
from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import RouteError, Routes, Target
from sluice.etl.changes.rules.row_rules import RowRuleError
from sluice.etl.changes.rules.source_columns import with_source_column
from sluice.etl.changes.steps import ChangeError
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

__all__ = ["RuleChecks", "ScopeError", "scope_error", "shown_statement"]


class ScopeError(ChangeError):
    """A DDL that leads into or out of what is replicated, or would take rows from a merged table.

    Names rule and ways out.
    """


def shown_statement(ddl: DdlJob, filters: Filter, tables: Iterable[Table | None]) -> str:
    """Return a job's statement for messages: without defaults if rules mask columns.

    `tables`: those of the job, before and behind it.
    """
    if filters.masking_rule is None:
        return ddl.query
    texts = (text for t in tables if t for c in t.columns for text in (c.default, c.origin_default))
    return without_defaults(
        ddl.query,
        [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts if t],
    )


def scope_error(ddl: DdlJob, what: str, way: str, statement: str) -> ScopeError:
    """Return the error of a job: what it does, and the way out beside leaving it out.

    `statement`: its text as `shown_statement` has it.
    """
    ts = ddl.commit_ts
    return ScopeError(
        f"{ddl.title}: {what}. Statement: {statement[:1000]}.",
        hint=(
            f"{way} leave the statement out: `sluice ddl skip {ts}`, or {ts} in [filter]"
            " ignore-txn-commit-ts"
        ),
    )


class RuleChecks:
    """The checks of one DDL job. Every method raises ScopeError."""

    def __init__(
        self,
        ddl: DdlJob,
        before: Mapping[int, Table],
        after: Mapping[int, Table | None],
        filters: Filter,
        routes: Routes,
    ) -> None:
        """Take the job's tables as they were, and as they are behind it, None: gone."""
        self._ddl = ddl
        self._kind = ddl.type
        self._before, self._after = before, after
        self._filters, self._routes = filters, routes

    def check_row_rules(self, table_id: int) -> None:
        """Check that the row rules of a table mean the same rows before and after the DDL."""
        old, new = self._before.get(table_id), self._after[table_id]
        if not self._filters.rows or new is None or not new.is_base_table:
            return
        rules = self._filters.row_rules(new.schema_name, new.name)
        for other in self._row_sources(old or new):
            if self._filters.row_rules(other.schema_name, other.name) != rules:
                raise self.error(
                    f"[[filter.rows]] selects other rows of {other.full_name} than of"
                    f" {new.full_name}: rows would be missing downstream, or stay behind",
                    "change the rules so that they are about both tables or none, or",
                )
        try:
            selection = self._filters.row_selection(new)
        except (ColumnRuleError, RowRuleError) as error:
            raise self.error(
                str(error),
                "change the rule so that it makes sense for the table behind the statement, or",
            ) from error
        if selection is None or old is None:
            return
        for column, rule in selection.columns.items():
            why = _changed_meaning(old, column)
            if why:
                raise self.error(
                    f"it changes {column.name} of {new.full_name} ({why}), by which {rule} selects"
                    " rows: rows may have moved across its border unseen",
                    f"run it downstream as it is (`sluice ddl replace {self._ddl.commit_ts}`) and"
                    f" copy the table again (`sluice backfill --table {new.full_name}`), or",
                )

    def _row_sources(self, table: Table) -> Sequence[Table]:
        """Return the tables that rows of `table` may come from: of an exchange, all of the job."""
        if self._kind != Action.EXCHANGE_PARTITION:
            return (table,)
        return (*self._before.values(), *(t for t in self._after.values() if t))

    def check_column_rules(self, table_id: int) -> None:
        """Check that the same columns of a table go downstream before and after the DDL."""
        old, new = self._before.get(table_id), self._after[table_id]
        if new is None or not new.is_base_table:
            return
        rules = self._filters.column_rules(new.schema_name, new.name)
        for other in self._row_sources(old or new):
            if self._filters.column_rules(other.schema_name, other.name) != rules:
                raise self.error(
                    f"[[filter.columns]] has other rules for columns of {other.full_name} than of"
                    f" {new.full_name}: values would be missing downstream, or stay behind",
                    "change the rules so that they are about both tables or none, or",
                )
        if rules and self.target(new).is_merged:
            raise self.error(
                f"{rules[0].effect} of {new.full_name}, which is merged with other tables",
                "change the rules, or",
            )
        if self._kind == Action.EXCHANGE_PARTITION and (
            keeping := next((rule for rule in rules if rule.history), None)
        ):
            raise self.error(
                f"it exchanges rows of {new.full_name}, of which {keeping.text} keeps versions: the"
                " past ones would change places with them",
                f"have none exchanged downstream (`sluice ddl replace {self._ddl.commit_ts} --sql"
                " 'DO 0'`) and copy both tables again (`sluice backfill`), or",
            )
        if not rules or old is None:
            return
        was_out, is_out = left_out_columns(rules, old), left_out_columns(rules, new)
        names = {column.id: column.name for column in new.columns}
        for column_id, was in pair_columns(old, new, self._ddl).items():
            name = names[column_id]
            if (was.name in was_out) != (name in is_out):
                rule = was_out.get(was.name) or is_out[name]
                raise self.error(
                    f"it makes column {was.name} of {old.full_name} {name}, and {rule.text} leaves"
                    " out one of the two: its values would be missing downstream, or stay behind",
                    "name the column in the rule under both names or none, or",
                )
        if any(rule.masks for rule in rules):
            self._check_masks(old, new)
        if any(rule.added for rule in rules):
            self._check_added(rules, old, new)

    def _check_masks(self, old: Table, new: Table) -> None:
        """Check that values masked before the DDL are those that the rules make of them behind."""
        tables = self.narrowed(old), self.narrowed(new)
        before, after = ({column.id: column for column in table.columns} for table in tables)
        pairs = pair_columns(old, new, self._ddl)
        for column_id, was in pairs.items():
            one, other = before[was.id], after[column_id]
            if not (one.public or other.public):
                continue
            why = unlike(one, other)
            by_old, by_new = by_column(tables[0], one), by_column(tables[1], other)
            if not why and by_old is not None and by_new is not None:
                if pairs[by_new.id].id != by_old.id:
                    why = f"{by_old.source_name} was another column"
                elif by_old.kind != by_new.kind:
                    why = f"the type of {by_old.source_name} was {by_old.kind}"
            if why:
                raise self.error(
                    f"it changes column {other.source_name} of {new.full_name}, which"
                    f" [[filter.columns]] masks ({why}): masked values downstream wouldn't be those"
                    " of the rule",
                    "change the rule so that it names the column before and behind the statement;"
                    f" or run it downstream as it is (`sluice ddl replace {self._ddl.commit_ts}`)"
                    f" and copy the table again (`sluice backfill --table {new.full_name}`), or",
                )

    def _check_added(self, rules: tuple[ColumnRule, ...], old: Table, new: Table) -> None:
        """Check that the DDL changes no column that an added one is computed from."""
        before, after = self.narrowed(old), self.narrowed(new)
        was = {c.name: _type_of(c) for c in before.columns if c.computed}
        becomes = {c.name: _type_of(c) for c in after.columns if c.computed}
        for column, (name, rule) in columns_read(rules, after).items():
            why = _changed_meaning(old, column)
            if not why and was[name] != becomes[name]:
                why = f"values of {name} have other widths then"
            if why:
                raise self.error(
                    f"it changes column {column.source_name} of {new.full_name} ({why}), from which"
                    f" {rule} computes {name}",
                    "run it downstream by statements that drop the column before and add it again"
                    f" behind (`sluice ddl replace {self._ddl.commit_ts} --sql '...'`), or",
                )

    def narrowed(self, table: Table) -> Table:
        """Return the table as column rules shape it. Raises ScopeError."""
        try:
            return self._filters.narrowed(table)
        except ColumnRuleError as error:
            raise self.error(
                str(error),
                "change the rule so that it makes sense for the table behind the statement, or",
            ) from error

    def by_source(self, table: Table, target: Target) -> Table:
        """Return the table with the column that its route adds. Raises ScopeError."""
        try:
            return with_source_column(table, target)
        except RouteError as error:
            raise self.error(str(error), "change the rules, or") from None

    def target(self, table: Table) -> Target:
        """Return where a table goes. Raises ScopeError."""
        try:
            return self._routes.target(table.schema_name, table.name)
        except RouteError as error:
            raise self.error(str(error), "change the rules, or") from None

    def error(self, what: str, way: str) -> ScopeError:
        """Return the error of the job: what it does, and the way out."""
        tables = (*self._before.values(), *self._after.values())
        return scope_error(self._ddl, what, way, shown_statement(self._ddl, self._filters, tables))


def _type_of(column: Column) -> tuple[object, ...]:
    """Return what must stay of the type of a column that a rule adds."""
    return column.tp, column.flen, column.decimal, column.flag


def _changed_meaning(old: Table, column: Column) -> str:
    """Return what a DDL has made of a column that a rule reads; "" if values stay equal."""
    known = {c.id: c for c in old.columns}
    named = next((c for c in old.columns if folded(c.name) == folded(column.source_name)), None)
    if named is None:
        return "the column is new, or has a new name"
    if column.id in known and known[column.id] != named:
        return f"it was {known[column.id].name}"
    before = (named.kind, named.unsigned, named.charset, named.collate, named.decimal)
    after = (column.kind, column.unsigned, column.charset, column.collate, column.decimal)
    if before != after or named.elems != column.elems[: len(named.elems)]:
        return "another type or collation"
    return "it becomes shorter" if -1 < column.flen < named.flen else ""
