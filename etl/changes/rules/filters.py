"""Filter what is replicated: the original's block and allow lists, and its event filter.

A table goes downstream if a `replicate-do-table` or `replicate-do-db` rule matches it (or there are
none), and no `ignore-table` or `ignore-schemas` rule does. Statements about a whole database are
filtered by the database's name; with `replicate-do-table` rules alone, databases that hold a table
which one of them could match are created (the original left that to the operator).

The system schemas and Sluice's own never go downstream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.etl.changes.formats.ddl_text import tokens
from sluice.etl.changes.rules.column_rules import (
    NO_HISTORY,
    ColumnRule,
    check_landed_masks,
    shaped_table,
)
from sluice.etl.changes.rules.history_tables import with_history
from sluice.etl.changes.rules.name_pattern import matches
from sluice.etl.changes.rules.row_rules import RowRule, RowRuleError
from sluice.etl.changes.rules.soft_deletes import with_deletion_mark
from sluice.tidb.folded import folded
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.schema import MAX_USER_TABLE_ID, Table

if TYPE_CHECKING:
    from sluice.etl.changes.rules.row_selection import RowSelection

OWN_SCHEMAS = frozenset({"tidb_binlog", "sluice_recycle"})

ROW_EVENTS = ("insert", "update", "delete")
"""Names of row events, in the order of `relay`'s change kinds."""
DDL_EVENTS = (
    "create database",
    "drop database",
    "alter database",
    "create table",
    "drop table",
    "truncate table",
    "rename table",
    "alter table",
    "create index",
    "drop index",
    "create view",
    "drop view",
    "alter view",
)
GROUP_EVENTS = ("all", "all dml", "all ddl", "none", "none dml", "none ddl")
_COMMAND = re.compile(r"(CREATE|DROP|ALTER|TRUNCATE|RENAME)\Z")
_OBJECT = {
    "DATABASE": "database",
    "SCHEMA": "database",
    "TABLE": "table",
    "INDEX": "index",
    "VIEW": "view",
}


@dataclass(frozen=True, slots=True)
class NameRule:
    """Patterns for a table's schema and name, and the rule's own text, for messages."""

    schema: str
    table: str
    text: str

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the rule is about this table."""
        return matches(self.schema, schema) and matches(self.table, table)


@dataclass(frozen=True, slots=True)
class EventRule:
    """Kinds of changes and statements of some tables that don't go downstream.

    `events` of ROW_EVENTS, DDL_EVENTS and GROUP_EVENTS; `statements` are regular expressions that
    match anywhere in a statement.
    """

    names: NameRule
    events: frozenset[str] = frozenset()
    statements: tuple[str, ...] = ()

    def ignores_rows(self, event: str) -> bool:
        """Return whether changes of this kind are left out."""
        return not self.events & {"none", "none dml"} and bool(
            self.events & {"all", "all dml", event}
        )

    @property
    def may_keep_rows(self) -> bool:
        """Return whether statements that remove rows may be left out.

        Then rows stay downstream which are gone upstream.
        """
        left_out = self.events & {
            "all",
            "all ddl",
            "truncate table",
            "drop table",
            "alter table",
            "drop database",
        }
        return bool(self.statements) or (bool(left_out) and not self.events & {"none", "none ddl"})

    def ignores_statement(self, query: str) -> bool:
        """Return whether a statement is left out."""
        if any(re.search(pattern, query, re.IGNORECASE) for pattern in self.statements):
            return True
        return not self.events & {"none", "none ddl"} and bool(
            self.events & {"all", "all ddl", statement_event(query)}
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """Names in patterns of `sluice.etl.changes.rules.name_pattern`. `own_schemas` in lower case."""

    do_schemas: tuple[str, ...] = ()
    do_tables: tuple[NameRule, ...] = ()
    ignored_schemas: tuple[str, ...] = ()
    ignored_tables: tuple[NameRule, ...] = ()
    events: tuple[EventRule, ...] = ()
    own_schemas: frozenset[str] = OWN_SCHEMAS
    rows: tuple[RowRule, ...] = ()
    columns: tuple[ColumnRule, ...] = ()

    def wants_schema(self, schema: str) -> bool:
        """Return whether statements about a database as a whole go downstream."""
        if self._blocks_schema(schema) or any(
            rule.matches(schema, "") for rule in self.ignored_tables
        ):
            return False
        return self._allows_all_of(schema) or any(
            matches(rule.schema, schema) for rule in self.do_tables
        )

    def wants_whole_schema(self, schema: str) -> bool:
        """Return whether every table that a database could hold goes downstream."""
        return (
            not self._blocks_schema(schema)
            and self._allows_all_of(schema)
            and not any(matches(rule.schema, schema) for rule in self.ignored_tables)
        )

    def wants_table(self, schema: str, table: str) -> bool:
        """Return whether changes and DDL of a table go downstream."""
        if self._blocks_schema(schema):
            return False
        if not self._allows_all_of(schema) and not any(
            rule.matches(schema, table) for rule in self.do_tables
        ):
            return False
        return not any(rule.matches(schema, table) for rule in self.ignored_tables)

    def reason(self, schema: str, table: str) -> str:
        """Return which rule decides about a table, for messages."""
        if folded(schema) in SYSTEM_SCHEMAS | self.own_schemas:
            return f"the schema {schema} is never replicated"
        blocking = [
            f"ignore-schemas '{pattern}'"
            for pattern in self.ignored_schemas
            if matches(pattern, schema)
        ]
        blocking += [rule.text for rule in self.ignored_tables if rule.matches(schema, table)]
        allowing = [
            f"replicate-do-db '{pattern}'"
            for pattern in self.do_schemas
            if matches(pattern, schema)
        ]
        allowing += [rule.text for rule in self.do_tables if rule.matches(schema, table)]
        if self.do_schemas + self.do_tables and not allowing:
            return "no replicate-do-db or replicate-do-table rule matches it"
        return (blocking or allowing or ["no rule leaves it out"])[0]

    def ignored_row_kinds(self, schema: str, table: str) -> frozenset[int]:
        """Return the change kinds of a table that are left out.

        They are numbered as in the relay log: 0 insert, 1 update, 2 delete.
        """
        rules = [rule for rule in self.events if rule.names.matches(schema, table)]
        if not rules:
            return frozenset()
        return frozenset(
            kind
            for kind, event in enumerate(ROW_EVENTS)
            if any(rule.ignores_rows(event) for rule in rules)
        )

    def row_rules(self, schema: str, table: str) -> tuple[RowRule, ...]:
        """Return the rules that select rows of a table."""
        return tuple(rule for rule in self.rows if rule.matches(schema, table))

    def row_selection(self, table: Table) -> RowSelection | None:
        """Return which rows of a table, under its upstream name, go downstream; None if all do.

        Raises RowRuleError if a rule makes no sense for its columns, and as `narrowed`.
        """
        rules = self.row_rules(table.schema_name, table.name) if self.rows else ()
        if not rules:
            return None
        if self.ignored_row_kinds(table.schema_name, table.name):
            raise RowRuleError(
                f"{rules[0].text} and {table.full_name}: an event filter leaves out changes of the"
                " same table, and which of the two comes first isn't defined",
                hint="write the event filter as `operations` of the row rule",
            )
        from sluice.etl.changes.rules.row_selection import RowSelection  # with Arrow

        selection = RowSelection(rules, self.narrowed(table))
        if masked := next((each for each in selection.columns if each.mask), None):
            raise RowRuleError(
                f"{selection.columns[masked]} selects rows of {table.full_name} by column"
                f" {masked.source_name}, which [[filter.columns]] masks: which rows are downstream"
                " would show its values",
                hint="change one of the two rules",
            )
        return selection

    def column_rules(self, schema: str, table: str) -> tuple[ColumnRule, ...]:
        """Return the rules that leave columns of a table out, mask, rename or add them."""
        return tuple(rule for rule in self.columns if rule.matches(schema, table))

    @property
    def keeps_deleted_rows(self) -> bool:
        """Return whether a rule has rows marked as deleted in place of deleted."""
        return any(rule.soft_delete for rule in self.columns)

    @property
    def keeps_history(self) -> bool:
        """Return whether a rule has every version of rows kept."""
        return any(rule.history for rule in self.columns)

    @property
    def masking_rule(self) -> ColumnRule | None:
        """Return the first rule that masks columns, None if none does."""
        return next((rule for rule in self.columns if rule.masks), None)

    def masks_alone(self) -> Filter:
        """Return a filter of all tables with the masks of this one, and no other rule."""
        masks = (
            replace(
                rule,
                leave_out=(),
                keep=(),
                rename=(),
                added=(),
                soft_delete="",
                history=NO_HISTORY,
            )
            for rule in self.columns
            if rule.masks
        )
        return Filter(own_schemas=self.own_schemas, columns=tuple(masks))

    def with_masks_of(self, other: Filter) -> Filter:
        """Return the filter with the masks of another one, besides its own rules.

        A table for which the two mask a column differently is refused by `narrowed`.
        """
        masks = (
            replace(rule, text=f"the pipeline's {rule.text}")
            for rule in other.masks_alone().columns
        )
        return replace(self, columns=(*self.columns, *masks))

    def narrowed(self, table: Table) -> Table:
        """Return the table, under its upstream name, with those columns public that go downstream.

        They have their names and masks there, and those that rules add are behind them. The column
        that marks deleted rows is the last one, computed as NULL: copies never write it. Columns of
        versions aren't among them (`with_history_columns`). Raises ColumnRuleError if it can't be
        without one that a rule leaves out, or a mask, a new name or an added column is no good.
        """
        if not self.columns or not table.is_base_table:
            check_landed_masks(table)
            return table
        rules = self.column_rules(table.schema_name, table.name)
        return with_history(rules, with_deletion_mark(rules, shaped_table(rules, table)))

    def leaves_changes_out(self, schema: str, table: str) -> bool:
        """Return whether a table downstream isn't what some rule makes of the upstream's rows.

        Changes are left out by their kind, so which rows are there depends on the past.
        """
        return (
            bool(self.ignored_row_kinds(schema, table))
            or self.may_keep_rows(schema, table)
            or any(not rule.is_of_rows for rule in self.row_rules(schema, table))
        )

    def may_keep_rows(self, schema: str, table: str) -> bool:
        """Return whether event rules may leave rows downstream that are gone upstream."""
        return any(rule.may_keep_rows for rule in self.events if rule.names.matches(schema, table))

    def ignoring_rule(self, schema: str, table: str, query: str) -> str | None:
        """Return the event rule by which a statement is left out; None if none does.

        `table` is "" for a database.
        """
        for rule in self.events:
            about = matches(rule.names.schema, schema) and (
                not table or matches(rule.names.table, table)
            )
            if about and rule.ignores_statement(query):
                return rule.names.text
        return None

    def _blocks_schema(self, schema: str) -> bool:
        if folded(schema) in SYSTEM_SCHEMAS or folded(schema) in self.own_schemas:
            return True
        return any(matches(pattern, schema) for pattern in self.ignored_schemas)

    def _allows_all_of(self, schema: str) -> bool:
        return not (self.do_schemas or self.do_tables) or any(
            matches(pattern, schema) for pattern in self.do_schemas
        )


def statement_event(query: str) -> str:
    """Return what the event filter calls a statement, one of DDL_EVENTS, "" for others.

    As in the original an index that ALTER TABLE makes is "alter table".
    """
    words = (word.upper() for word in tokens(query) if word[0].isalpha())
    command = next(words, "")
    if not _COMMAND.match(command):
        return ""
    kind = next(
        (_OBJECT[word] for word in words if word in _OBJECT),
        "table" if command == "TRUNCATE" else "",
    )
    event = f"{command.lower()} {kind}"
    return event if event in DDL_EVENTS else ""


def is_internal_table(table_id: int) -> bool:
    """Return whether an id belongs to one of TiDB's internal tables.

    No schema history describes them.
    """
    return table_id > MAX_USER_TABLE_ID
