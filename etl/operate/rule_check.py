"""Show what a pipeline's rules make of a table, of its columns and of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.errors import RequestError
from sluice.etl.changes.conditions import ImagePair, parse_value, value_columns
from sluice.etl.changes.masks import Mask
from sluice.etl.changes.rules import (
    ROW_EVENTS,
    ColumnRule,
    ColumnRuleError,
    NameRule,
    Route,
    RouteError,
    RowRule,
    RowRuleError,
    RowSelection,
    added_columns,
    history_columns,
    left_out_columns,
    with_source_column,
)
from sluice.etl.downstream.ddl import column_type
from sluice.etl.settings import Kafka, Settings
from sluice.etl.settings.sinks import NONE
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name, suggestion

__all__ = ["RuleCheck", "check_rules", "unused_rules"]

Row = Mapping[str, Any]
"""Values by column name, in any case; a column that is not in it is NULL."""


@dataclass(slots=True)
class RuleCheck:
    """What rules make of a table: `lines` for people; `problems` would stop replication."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_rules(
    settings: Settings,
    tables: Sequence[Table],
    name: str,
    old: Row | None = None,
    new: Row | None = None,
) -> RuleCheck:
    """Return what the rules make of the table `name` (full upstream name), and of a change.

    `tables`: all of the upstream's. `old`, `new`: a row before and after a change: both of an
    update, one of a delete or an insert, none to ask for no row. Raises RequestError for a table
    that isn't there, and for a row that isn't one of the table.
    """
    table = next((each for each in tables if each.full_name == name), None)
    if table is None:
        known = [each.full_name for each in tables]
        raise RequestError(
            f"the upstream has no table {name!r}{suggestion(name, known)}",
            hint="write SCHEMA.TABLE, as upstream",
        )
    found = RuleCheck(warnings=list(unused_rules(settings, tables)))
    if isinstance(settings.target, Kafka) and settings.target.truncate_messages == NONE:
        found.warnings.append(
            f"[kafka] truncate-messages = {NONE!r}: readers of a topic keep the rows of a table"
            " that TRUNCATE TABLE empties"
        )
    _check_table(settings, table, found)
    if old is not None or new is not None:
        found.lines.append(_outcome(settings, table, old, new))
    return found


def unused_rules(settings: Settings, tables: Sequence[Table]) -> Iterator[str]:
    """Yield the rules about tables that are about none of them, in words."""
    names = [(table.schema_name, table.name) for table in tables]
    filters = settings.filters
    rules: list[RowRule | ColumnRule | NameRule | Route] = [
        *filters.rows,
        *filters.columns,
        *filters.do_tables,
        *filters.ignored_tables,
        *(rule.names for rule in filters.events),
        *settings.routes.rules,
    ]
    for rule in rules:
        if not any(rule.matches(*name) for name in names):
            yield f"{rule.text} is about no table that the upstream has"
    for column_rule in filters.columns:
        yield from _unknown_columns(column_rule, tables)


def _unknown_columns(rule: ColumnRule, tables: Sequence[Table]) -> Iterator[str]:
    own = [table for table in tables if rule.matches(table.schema_name, table.name)]
    known = {folded(column.name) for table in own for column in table.columns if column.public}
    others = (name for name, _ in (*rule.rename, *rule.masks))
    read = {one.name for _, made in rule.added for one in value_columns(parse_value(made.value))}
    for name in (*rule.leave_out, *rule.keep, *others, *sorted(read)) if own else ():
        if folded(name) not in known:
            yield f"{rule.text} names {name}, a column that none of its tables has"


def _check_table(settings: Settings, table: Table, found: RuleCheck) -> None:
    filters, names = settings.filters, (table.schema_name, table.name)
    if not filters.wants_table(*names):
        found.lines.append(f"{table.full_name}: not replicated, {filters.reason(*names)}")
        return
    try:
        target = settings.routes.target(*names)
        selection = filters.row_selection(table)
        shaped = filters.narrowed(table)
        source = with_source_column(table, target).source_column
    except (ColumnRuleError, RouteError, RowRuleError) as error:
        found.problems.append(str(error))
        return
    route = "" if target.route is None else f", by {target.route.text}"
    found.lines.append(f"{table.full_name}: to {full_name(target.schema, target.table)}{route}")
    if source is not None:
        found.lines.append(
            f"  {source.name}: {table.full_name} in all of its rows, in front of each unique key"
        )
    left_out = sorted(filters.ignored_row_kinds(*names))
    if left_out:
        kinds = ", ".join(ROW_EVENTS[kind] for kind in left_out)
        found.lines.append(f"  an event filter leaves out: {kinds}")
    used = {} if selection is None else selection.columns
    left = left_out_columns(filters.column_rules(*names), table)
    if shaped is not table and target.is_merged:
        found.problems.append(
            f"{table.full_name}: columns of a merged table can't be left out, masked, renamed or"
            " added"
        )
    for row_rule in () if selection is None else selection.rules:
        what = "rows" if row_rule.is_of_rows else "changes"
        found.lines.append(f"  {what} that {row_rule.text} selects")
    if selection is not None:
        found.lines.append(f"  in SQL: {selection.sql()}")
        if not selection.is_of_rows:
            found.lines.append("  not compared, and not copied again: it depends on the past")
    added = shaped.columns[len(table.columns) :]
    for column, now in zip(
        table.columns, shaped.columns, strict=False
    ):  # the added ones are behind
        if column.public and not column.hidden:
            rule = left.get(column.name)
            fate = _fate(now, used.get(now)) if rule is None else f"left out by {rule.text}"
            found.lines.append(f"  {column.name}: {fate}")
    adding = added_columns(filters.column_rules(*names), table)
    for column in added:
        if column.marks_deletes:
            by = next(rule.text for rule in filters.column_rules(*names) if rule.soft_delete)
            found.lines += _soft_delete_lines(table, column, by)
            continue
        by = adding[column.name][1].text
        found.lines.append(f"  {column.name}: added by {by}, as {_definition(column)}")
    if shaped.history:
        by = next(rule.text for rule in filters.column_rules(*names) if rule.history)
        found.lines += _history_lines(shaped, by)


def _history_lines(shaped: Table, by: str) -> Iterator[str]:
    since, until, commit_ts = history_columns(shaped)
    for column, what in (
        (since, "when the version began, in UTC"),
        (until, "when it ended, NULL while the row is upstream"),
        (commit_ts, "the commit timestamp that made it"),
    ):
        null = "NOT NULL" if column.not_null else "NULL"
        yield f"  {column.name}: added by {by}, as {column_type(column)} {null}: {what}"
    key = ", ".join((*shaped.primary_key, commit_ts.name))
    yield f"  the primary key: ({key}), as each version is a row"
    yield from _ordinary_indexes(shaped, "versions repeat values")
    if shaped.foreign_keys:
        yield "  its foreign keys: none downstream"


def _ordinary_indexes(table: Table, why: str) -> Iterator[str]:
    for index in table.indexes:
        if index.unique and not index.primary:
            yield f"  the unique key {index.name}: an ordinary index, as {why}"


def _soft_delete_lines(table: Table, mark: Column, by: str) -> Iterator[str]:
    yield (
        f"  {mark.name}: added by {by}, as {column_type(mark)} NULL: when the row was deleted, in"
        " UTC"
    )
    yield from _ordinary_indexes(table, "deleted rows stay")


def _definition(column: Column) -> str:
    """Return the definition of an added column, as ALTER TABLE takes it behind the name."""
    words = [column_type(column)]
    if column.kind == "text":
        words.append(f"CHARACTER SET {column.charset} COLLATE {column.collate}")
    return f"{' '.join(words)} GENERATED ALWAYS AS ({column.generated}) STORED"


def _fate(column: Column, rule: str | None) -> str:
    fate = "computed downstream" if column.virtual else "as upstream"
    if column.mask:
        fate = f"masked as {Mask.from_text(column.mask)}"
    if column.upstream_name:
        fate += f", as {column.name}"
    return f"{fate}, and {rule} looks at it" if rule else fate


def _outcome(settings: Settings, table: Table, old: Row | None, new: Row | None) -> str:
    """Return what a change becomes downstream."""
    kind = UPDATE if old is not None and new is not None else DELETE if new is None else INSERT
    if not settings.filters.wants_table(table.schema_name, table.name):
        return f"{ROW_EVENTS[kind]}: nothing, the table isn't replicated"
    if kind in settings.filters.ignored_row_kinds(table.schema_name, table.name):
        return f"{ROW_EVENTS[kind]}: nothing, an event filter leaves it out"
    selection = settings.filters.row_selection(table)
    names = {column.id: column.name for column in settings.filters.narrowed(table).columns}
    pair = ImagePair(1, _image(table, names, old), _image(table, names, new))
    was = old is not None and _is_kept(selection, kind, pair, "old")
    will_be = new is not None and _is_kept(selection, kind, pair, "new")
    became = {(True, True): "update", (True, False): "delete", (False, True): "insert"}
    return f"{ROW_EVENTS[kind]}: {became.get((was, will_be), 'nothing, no rule selects the row')}"


def _is_kept(selection: RowSelection | None, kind: int, pair: ImagePair, side: str) -> bool:
    return selection is None or bool(selection.kept(kind, pair, side)[0])


def _image(table: Table, names: Mapping[int, str], row: Row | None) -> dict[str, pa.Array] | None:
    """Return a row as a condition takes it. Raises RequestError.

    `names`: the columns' names downstream, by column id.
    """
    if row is None:
        return None
    values = {folded(name): value for name, value in row.items()}
    known = {folded(column.name) for column in table.stored_columns}
    if unknown := sorted(values.keys() - known):
        raise RequestError(
            f"{table.full_name} stores no column {', '.join(unknown)}",
            hint="name columns of the table as it is upstream now",
        )
    return {names[c.id]: _array(table, c, values.get(folded(c.name))) for c in table.stored_columns}


def _array(table: Table, column: Column, value: Any) -> pa.Array:
    kind = arrow_type(column)
    is_text = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    try:
        return pa.array([str(value) if is_text and value is not None else value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise RequestError(
            f"{table.full_name}: {value!r} is no value of {column.name} ({column.kind})",
            hint="write numbers without quotes, all else in quotes",
        ) from error
