"""Propose rules for tables of the downstream that have fewer or more columns than the upstream's.

A Drainer with `sync-mode = 2` leaves out whatever the downstream lacks, each time anew. Here the
downstream is looked at once, and what it lacks becomes rules: a column that is lost later is missed
then, by applying and by verification.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sluice.errors import SluiceError
from sluice.etl.changes.rules import ColumnRule
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Settings
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import exactly

__all__ = ["HeldColumn", "PartialTables", "held_columns", "propose_partial"]

_COLUMNS = (
    "SELECT COLUMN_NAME, IS_NULLABLE, COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)


@dataclass(frozen=True, slots=True)
class HeldColumn:
    """A column downstream; `fills_itself`: a statement need not have a value for it."""

    name: str
    fills_itself: bool


@dataclass(slots=True)
class PartialTables:
    """The text of rules, and what would stop replication whatever the rules."""

    text: str = ""
    problems: list[str] = field(default_factory=list)


ReadColumns = Callable[[str, str], Sequence[HeldColumn]]
"""Returns the columns of a table downstream, by its schema and name; none if it isn't there."""


def held_columns(session: MySQLSession) -> ReadColumns:
    """Return the function that asks a server. It raises DownstreamError."""

    def read(schema: str, table: str) -> list[HeldColumn]:
        return [
            HeldColumn(
                str(name),
                str(nullable) == "YES"
                or default is not None
                or any(word in str(extra).lower() for word in ("generated", "auto_increment")),
            )
            for name, nullable, default, extra in session.query(_COLUMNS, (schema, table))
        ]

    return read


def propose_partial(
    settings: Settings, tables: Sequence[Table], read_columns: ReadColumns
) -> PartialTables:
    """Return rules that leave out what the downstream's tables lack.

    `tables`: the upstream's, by their names there. Tables that aren't downstream yet are passed
    over: they are made whole. What `read_columns` raises is passed on.
    """
    found, parts = PartialTables(), []
    for table in tables:
        if table.is_base_table and settings.filters.wants_table(table.schema_name, table.name):
            try:
                parts += _of_table(settings, table, read_columns, found.problems)
            except SluiceError as error:
                if not isinstance(error, ValueError):  # of the server
                    raise
                found.problems.append(str(error))
    found.text = "\n\n".join(parts)
    return found


def _of_table(
    settings: Settings, table: Table, read_columns: ReadColumns, problems: list[str]
) -> list[str]:
    """Return the table's part of the text. Raises ColumnRuleError, RouteError, RowRuleError."""
    target = settings.routes.target(table.schema_name, table.name)
    held = {folded(each.name): each for each in read_columns(target.schema, target.table)}
    if not held:
        return []
    shaped = settings.filters.narrowed(table)
    shown = [c for c in shaped.columns if c.public and not c.hidden]
    upstream = {column.id for column in table.columns if column.public and not column.hidden}
    lacking = [
        column.source_name
        for column in shown
        if column.id in upstream and not column.computed and folded(column.name) not in held
    ]
    known = {folded(column.name) for column in shown}
    own = [each for name, each in held.items() if name not in known]
    problems += [
        f"{table.full_name}: the downstream's own column {each.name} is NOT NULL without a default,"
        " so no row can be inserted: give it one"
        for each in own
        if not each.fills_itself
    ]
    lines = []
    if own:
        names = ", ".join(each.name for each in own)
        lines.append(f"# {table.full_name} has columns of its own downstream: {names}")
    if lacking:
        rule = ColumnRule((exactly(table.full_name),), tuple(lacking), (), "the proposed rule")
        filters = replace(settings.filters, columns=(*settings.filters.columns, rule))
        filters.narrowed(table)
        filters.row_selection(table)
        lines += [
            "[[filter.columns]]",
            f"tables = [{json.dumps(exactly(table.full_name), ensure_ascii=False)}]",
            f"leave-out = {json.dumps(lacking, ensure_ascii=False)}",
        ]
    return ["\n".join(lines)] if lines else []
