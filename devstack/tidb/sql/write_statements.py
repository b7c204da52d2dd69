"""INSERT, UPDATE and DELETE, as `sluice undo` writes them and people type them.

One table; values and conditions are expressions. No IGNORE, ON DUPLICATE KEY, ORDER BY or joins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from sluice.devstack.tidb.sql import values
from sluice.devstack.tidb.sql.errors import SQLError, syntax_error
from sluice.devstack.tidb.sql.evaluate import Evaluator, Scope, compile_expression, is_true
from sluice.devstack.tidb.sql.parse import Node, Parser
from sluice.devstack.tidb.sql.writes import Row, WriteTransaction, column_names, stored_value
from sluice.etl.changes import server_errors
from sluice.tidb.codec.column_value import parse_text
from sluice.tidb.codec.row import ROWID_NAME
from sluice.tidb.column_types import FLAG_AUTO_INCREMENT
from sluice.tidb.schema import Column, Table

__all__ = ["WRITES", "RowWriter"]

WRITES = ("INSERT", "UPDATE", "DELETE")
_NOW = "CURRENT_TIMESTAMP"


class RowWriter:
    """Execute a statement that writes rows into a transaction.

    `find_table` returns the table of a name; `scope_of` the meaning of names over columns; `now`
    the time in UTC. Every method raises SQLError, and has changed nothing then.
    """

    def __init__(
        self,
        transaction: WriteTransaction,
        find_table: Callable[[tuple[str, ...]], Table],
        scope_of: Callable[[Sequence[Column]], Scope],
        now: Callable[[], str],
    ) -> None:
        self._transaction = transaction
        self._find_table, self._scope_of = find_table, scope_of
        self._now = now

    def execute(self, word: str, parser: Parser) -> int:
        """Execute the rest of the statement that begins with `word`; return the rows changed."""
        if word == "INSERT":
            return self._insert(parser)
        return self._update(parser) if word == "UPDATE" else self._delete(parser)

    def _insert(self, parser: Parser) -> int:
        parser.expect("INTO")
        table = self._find_table(tuple(parser.names()))
        names = [column.name for column in table.writable_columns]
        if parser.accept("("):
            names = [parser.name()]
            while parser.accept(","):
                names.append(parser.name())
            parser.expect(")")
        if not (parser.accept("VALUES") or parser.accept("VALUE")):
            raise syntax_error(f"INSERT … {parser.here.value}")
        rows = []
        while True:
            parser.expect("(")
            rows.append(parser.list())
            parser.expect(")")
            if not parser.accept(","):
                break
        parser.end()
        by_name = _columns(table)
        columns = [_settable(by_name, name) for name in names]
        taken = _Ids(self._transaction, table)
        put = []
        for nodes in rows:
            if len(nodes) != len(columns):
                raise SQLError(
                    server_errors.COLUMN_COUNT, "Column count doesn't match value count at row 1"
                )
            given = {
                column.name: stored_value(column, value)
                if not (column.flag & FLAG_AUTO_INCREMENT and value is None)
                else None
                for column, value in zip(columns, map(self._constant, nodes), strict=True)
            }
            put.append(self._new_row(table, given, taken))
        self._transaction.apply(table, (), put)
        return len(put)

    def _new_row(self, table: Table, given: dict[str, Any], ids: _Ids) -> Row:
        row: Row = []
        for place, column in enumerate(table.stored_columns):
            value = given.get(column.name)
            if column.flag & FLAG_AUTO_INCREMENT and value is None:
                value = ids.take(place)
            elif column.name not in given and not column.generated:
                value = self._default(column)
            row.append(value)
        if table.handle_kind == "heap":
            row.append(ids.take(len(row)))
        return self._generated(table, row)

    def _default(self, column: Column) -> Any:
        default = column.default
        if default is None:
            if column.not_null:
                raise SQLError(
                    server_errors.NO_DEFAULT,
                    f"Field '{column.name}' doesn't have a default value",
                )
            return None
        text = default.decode() if isinstance(default, bytes) else default
        if text.upper().startswith(_NOW):
            return parse_text(column, self._now())
        return parse_text(column, default)

    def _generated(self, table: Table, row: Row) -> Row:
        for place, column in enumerate(table.stored_columns):
            if column.generated:
                found = self._compiled(Parser(column.generated).expression(), table)(row)
                row[place] = stored_value(column, found)
        return row

    def _update(self, parser: Parser) -> int:
        table = self._find_table(tuple(parser.names()))
        parser.expect("SET")
        by_name = _columns(table)
        assigned: list[tuple[Column, Evaluator]] = []
        while True:
            column = _settable(by_name, parser.names()[-1])
            parser.expect("=")
            assigned.append((column, self._compiled(parser.expression(), table)))
            if not parser.accept(","):
                break
        matching = self._matching(parser, table)
        places = {column.name: place for place, column in enumerate(table.stored_columns)}
        removed, put = [], []
        for key, row in matching:
            new = row.copy()
            for column, evaluate in assigned:
                new[places[column.name]] = stored_value(column, evaluate(row))
            new = self._generated(table, new)
            if new != row:
                removed.append(key)
                put.append(new)
        self._transaction.apply(table, removed, put)
        return len(put)

    def _delete(self, parser: Parser) -> int:
        parser.expect("FROM")
        table = self._find_table(tuple(parser.names()))
        removed = [key for key, _ in self._matching(parser, table)]
        self._transaction.apply(table, removed, ())
        return len(removed)

    def _matching(self, parser: Parser, table: Table) -> list[tuple[Any, Row]]:
        """Parse WHERE and LIMIT; return the rows that match, with their keys."""
        where = parser.expression() if parser.accept("WHERE") else None
        limit = int(self._constant(parser.expression())) if parser.accept("LIMIT") else None
        parser.end()
        test = self._test(where, table) if where is not None else None
        rows = self._transaction.rows(table)
        return list(itertools.islice((r for r in rows if test is None or test(r[1])), limit))

    def _test(self, where: Node, table: Table) -> Callable[[Row], bool]:
        """Return whether a row matches.

        Of `(id = 1 AND …) OR (id = 2 AND …)`, as undo writes, only the part with the row's own id
        is computed.
        """
        place, column = next(
            (
                (place, column)
                for place, column in enumerate(table.stored_columns)
                if column.name in table.primary_key[:1]
            ),
            (0, None),
        )
        parts = _alternatives(where, "or")
        if column is None or len(parts) < 2:
            evaluate = self._compiled(where, table)
            return lambda row: is_true(evaluate(row))
        form = values.comparer(column)
        by_key: dict[Any, list[Evaluator]] = {}
        for part in parts:
            wanted = _equal_to(part, column.name)
            if wanted is None:
                evaluate = self._compiled(where, table)
                return lambda row: is_true(evaluate(row))
            by_key.setdefault(form(wanted), []).append(self._compiled(part, table))
        return lambda row: any(
            is_true(evaluate(row)) for evaluate in by_key.get(form(row[place]), ())
        )

    def _compiled(self, node: Node, table: Table) -> Evaluator:
        known = {column.name: column for column in table.stored_columns}
        columns = [known[name] for name in column_names(table) if name != ROWID_NAME]
        return compile_expression(node, self._scope_of(columns))

    def _constant(self, node: Node) -> Any:
        return compile_expression(node, self._scope_of([]))([])


class _Ids:
    """Ids for new rows: above all that there are, and above each other."""

    def __init__(self, transaction: WriteTransaction, table: Table) -> None:
        self._transaction, self._table = transaction, table
        self._next: dict[int, int] = {}

    def take(self, place: int) -> int:
        if place not in self._next:
            self._next[place] = self._transaction.next_id(self._table, place)
        self._next[place] += 1
        return self._next[place] - 1


def _columns(table: Table) -> dict[str, Column]:
    return {column.name.lower(): column for column in table.writable_columns}


def _settable(by_name: dict[str, Column], name: str) -> Column:
    found = by_name.get(name.lower())
    if found is None:
        raise SQLError(server_errors.UNKNOWN_COLUMN, f"Unknown column '{name}' in 'field list'")
    return found


def _alternatives(node: Node, kind: str) -> list[Node]:
    """Return the parts of nested ORs, or ANDs; without recursion, as there may be hundreds."""
    found, left = [], [node]
    while left:
        one = left.pop()
        if one[0] == kind:
            left += [one[2], one[1]]
        else:
            found.append(one)
    return found


def _equal_to(node: Node, name: str) -> Any:
    """Return the value that a condition wants this column to equal, None if there is none."""
    for part in _alternatives(node, "and"):
        match part:
            case ("compare", "=" | "<=>", ("column", column), ("value", value)) if (
                column.lower() == name.lower()
            ):
                return value
    return None
