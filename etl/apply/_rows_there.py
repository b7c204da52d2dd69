"""Whether row changes are downstream, told from the rows themselves: what a definition looks like anybody may have
brought about, but rows as only these changes leave them nobody else.

Each row that the changes concern must be as the last of them leaves it, or as a later one does, as far as its columns
are still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.downstream import Checkpoint, MySQLSession
from etl.formats.sql_text import quote_name
from etl.operate import RowChange, decode
from etl.recorded_schema import RecordedSchema, TablesAt
from etl.rules import Rules
from relay import SKIP, RelayLog
from upstream.rows import ROWID_NAME
from upstream.schema import Table

_COLUMNS = "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_MAX_ROWS = 200_000
Image = dict[str, Any] | None


@dataclass(slots=True)
class _Row:
    """`key` by column name; `images`: what it may look like, None: it isn't there. `commit_ts`: of the last change that
    counts.
    """

    key: dict[str, Any]
    commit_ts: int
    images: list[Image] = field(default_factory=list)


def first_missing(session: MySQLSession, relay: RelayLog, rules: Rules, checkpoint: Checkpoint, through: int) -> str:
    """ "" if every row change committed after `checkpoint` through `through` (TSO) is downstream; else the first row
    that isn't as it should be, in words. Changes through the checkpoint's `safe_until` may be downstream too.
    """
    after, until = checkpoint.commit_ts, checkpoint.safe_until
    rows: dict[tuple[int, tuple[Any, ...]], _Row] = {}
    tables: dict[int, Table | None] = {}
    for window in relay.windows(after, until):
        for ddl in RecordedSchema.of(window).ddls:
            if after < ddl.commit_ts <= through:
                tables |= ddl.effect.tables
        known = TablesAt.of(window)
        skipped = {
            decision.commit_ts for decision in relay.decisions.list(window.lo) if decision.action == SKIP
        } | rules.ignored_ts
        for raw in relay.read([window]).to_pylist() if window.parts else ():
            commit_ts, table = int(raw["commit_ts"]), known.find(raw["table_id"], raw["commit_ts"])
            if (
                not after < commit_ts <= until
                or commit_ts in skipped
                or (table is not None and _left_out(rules, table, raw["kind"]))
            ):
                continue
            change = decode(raw, table)
            if change.fault:
                return f"{change.table} at commit_ts {commit_ts}: {change.fault}"
            if commit_ts <= through and table is not None:
                tables.setdefault(table.id, table)
            for key, image in _after(change):
                if commit_ts <= through:
                    rows[raw["table_id"], tuple(map(str, key.values()))] = _Row(key, commit_ts, [image])
                elif (row := rows.get((raw["table_id"], tuple(map(str, key.values()))))) is not None:
                    row.images.append(image)
            if len(rows) > _MAX_ROWS:
                return f"more than {_MAX_ROWS} rows are concerned"
    return _first_wrong(session, rules, rows, tables)


def _left_out(rules: Rules, table: Table, kind: int) -> bool:
    wanted = rules.filters.wants_table(table.schema_name, table.name)
    return not wanted or kind in rules.filters.ignored_row_kinds(table.schema_name, table.name)


def _after(change: RowChange) -> Iterator[tuple[dict[str, Any], Image]]:
    """What a change leaves under the keys that it concerns."""
    image = change.new or change.old or {}
    new_key = {name: image[name] for name in change.key}
    if change.old is not None and change.new is not None and new_key != change.key:
        yield change.key, None
    yield new_key, change.new


def _first_wrong(
    session: MySQLSession,
    rules: Rules,
    rows: dict[tuple[int, tuple[Any, ...]], _Row],
    tables: dict[int, Table | None],
) -> str:
    columns: dict[int, tuple[str, set[str]]] = {}
    for (table_id, _), row in rows.items():
        table = tables[table_id]
        if table is None:
            continue  # dropped with all its rows
        if table_id not in columns:
            goal = rules.routes.target(table.schema_name, table.name)
            names = {str(name).lower() for (name,) in session.query(_COLUMNS, (goal.schema, goal.table))}
            columns[table_id] = f"{quote_name(goal.schema)}.{quote_name(goal.table)}", names
        name, there = columns[table_id]
        if not _is_there(session, name, there, row):
            key = ", ".join(f"{column}={value!r:.60}" for column, value in row.key.items() if column != ROWID_NAME)
            return (
                f"{table.full_name}, {f'key {key}' if key else 'a table without a key'}, is not as commit_ts"
                f" {row.commit_ts} or later leaves it"
            )
    return ""


def _is_there(session: MySQLSession, table: str, columns: set[str], row: _Row) -> bool:
    if not columns or not (set(map(str.lower, row.key)) - {ROWID_NAME.lower()} <= columns):
        return False
    keyed = {name: value for name, value in row.key.items() if name != ROWID_NAME}
    if None in row.images and keyed and not _count(session, table, [keyed]):
        return True
    wanted = [
        {name: value for name, value in image.items() if name.lower() in columns}
        for image in row.images
        if image is not None
    ]
    return bool(wanted and _count(session, table, wanted))


def _count(session: MySQLSession, table: str, images: Sequence[dict[str, Any]]) -> int:
    values: list[Any] = []
    terms = []
    for image in images:
        terms.append(" AND ".join(f"{quote_name(name).replace('%', '%%')} <=> %s" for name in image))
        values += [
            value if value is None or isinstance(value, int | float | bytes) else str(value) for value in image.values()
        ]
    return int(
        session.query(f"SELECT COUNT(*) FROM {table.replace('%', '%%')} WHERE ({') OR ('.join(terms)})", values)[0][0]
    )


__all__ = ["first_missing"]
