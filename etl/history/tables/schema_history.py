"""Read a table's schema changes backwards from window records: statements, names, columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.downstream.ddl import column_type
from sluice.etl.history.find import TimeBudget
from sluice.etl.history.history_log import HistoryLog
from sluice.relay import WindowRecord
from sluice.tidb.ddl_actions import REMOVES_ROWS, action_name
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.id_maps import names_by_id
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name

__all__ = ["ColumnTypeChange", "SchemaChange", "TableSchemaHistory", "table_schema_history"]

MAX_CHANGES = 50


@dataclass(frozen=True, slots=True)
class ColumnTypeChange:
    """A column type change.

    `old` and `new` are types as SQL has them; "" where there was no such column.
    """

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A schema change; `kind`: TiDB's name of it.

    `before`, `after`: the table's name, "" where there was none; `drops`: rows are gone after it.
    """

    commit_ts: int
    job_id: int
    kind: str
    statement: str
    before: str
    after: str
    columns: tuple[ColumnTypeChange, ...] = ()
    drops: bool = False


@dataclass(slots=True)
class TableSchemaHistory:
    """The newest first.

    What was committed after `through` (TSO) has been looked through: go on with it, for the table
    that was called `name` then, unless `complete`. `columns`: name and type now, as far as a window
    describes it.
    """

    name: str
    through: int
    changes: list[SchemaChange] = field(default_factory=list)
    columns: list[tuple[str, str, bool]] | None = None
    """Name, type, whether it may be NULL."""
    complete: bool = False


def table_schema_history(
    past: HistoryLog, name: str, until: int, patience: TimeBudget | None = None
) -> TableSchemaHistory:
    """Return the schema changes of a table (full name) through `until` (TSO).

    As far back as the time budget `patience` reaches, MAX_CHANGES changes at most. Raises relay
    errors.
    """
    patience = patience or TimeBudget()
    found = TableSchemaHistory(name, min(until, past.last))
    for stretch in reversed(past.ranges(0, until)):
        for window in stretch.log.backwards(stretch.until, stretch.since):
            _look_through(window, until, found)
            found.through = max(window.lo, stretch.since)
            if patience.over() or len(found.changes) >= MAX_CHANGES:
                return found
    found.complete = True
    return found


def _look_through(window: WindowRecord, until: int, found: TableSchemaHistory) -> None:
    if not window.ddls and (found.columns is not None or not window.tables):
        return
    schema = RecordedSchema.from_window(window)
    tables = SchemaTimeline(schema)
    if found.columns is None:
        _describe(schema, tables, window, found)
    for ddl in reversed(schema.ddls):
        if ddl.commit_ts <= until:
            _apply_ddl(ddl, tables, found)


def _describe(
    schema: RecordedSchema, tables: SchemaTimeline, window: WindowRecord, found: TableSchemaHistory
) -> None:
    """Describe the table as the window leaves it, if it is in it."""
    known = (schema.tables, *(ddl.effect.tables for ddl in schema.ddls))
    ids = {
        i for each in known for i, *place in names_by_id(each) if full_name(*place) == found.name
    }
    for table in (tables.find(table_id, window.hi + 1) for table_id in ids):
        if table is not None and table.full_name == found.name:
            found.columns = [
                (c.name, column_type(c), not c.not_null) for c in table.columns if _shown(c)
            ]


def _apply_ddl(ddl: DdlJob, tables: SchemaTimeline, found: TableSchemaHistory) -> None:
    before, after = _sides(ddl, tables.before(ddl), found.name)
    named = full_name(ddl.schema_name, ddl.table_name) == found.name
    if before is None and after is None and not named:
        return
    change = SchemaChange(
        ddl.commit_ts, ddl.job_id, action_name(ddl.type), ddl.query,
        before.full_name if before else "", after.full_name if after else "",
        tuple(_columns(before, after)), ddl.type in REMOVES_ROWS,
    )  # fmt: skip
    found.changes.append(change)
    if before is not None:
        found.name = before.full_name


def _sides(ddl: DdlJob, then: Mapping[int, Table], name: str) -> tuple[Table | None, Table | None]:
    """Return the table that has the name behind the DDL, as it was and as it is.

    Or the one that had it, and is gone.
    """
    before, after = None, None
    for table_id, new in ddl.effect.tables.items():
        old = then.get(table_id)
        if new is not None and new.full_name == name:
            before, after = old or before, new
        elif new is None and old is not None and old.full_name == name:
            before = before or old
    return before, after


def _columns(before: Table | None, after: Table | None) -> Iterator[ColumnTypeChange]:
    if before is None or after is None:
        return
    old = {column.id: column for column in before.columns if _shown(column)}
    new = {column.id: column for column in after.columns if _shown(column)}
    for i in dict.fromkeys((*old, *new)):
        one, other = old.get(i), new.get(i)
        texts = [_text(column) if column else "" for column in (one, other)]
        names = dict.fromkeys(column.name for column in (one, other) if column)
        if texts[0] != texts[1] or len(names) > 1:
            yield ColumnTypeChange(" → ".join(names), *texts)


def _shown(column: Column) -> bool:
    return column.public and not column.hidden


def _text(column: Column) -> str:
    return column_type(column) + (" NOT NULL" if column.not_null else "")
