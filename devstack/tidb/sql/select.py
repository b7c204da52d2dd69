"""SELECT: read from text, and executed over the rows of one table at a timestamp."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

from sluice.devstack.tidb.sql import results, values
from sluice.devstack.tidb.sql.errors import SQLError, syntax_error
from sluice.devstack.tidb.sql.evaluate import DIGITS, Evaluator, Scope, compile_expression, is_true
from sluice.devstack.tidb.sql.parse import Node, Parser
from sluice.devstack.tidb.sql.results import Header, Result
from sluice.etl.changes import server_errors
from sluice.tidb.column_types import BIGINT, DOUBLE
from sluice.tidb.schema import Column, Table

_AGGREGATES = {"COUNT", "MIN", "MAX", "SUM"}
_AFTER_TABLE = (
    "WHERE",
    "ORDER",
    "LIMIT",
    "TABLESAMPLE",
    "AS",
    "FORCE",
    "USE",
    "IGNORE",
    "PARTITION",
    "FOR",
)


@dataclass(slots=True)
class Select:
    """A statement.

    `source`: names of schema and table, () without FROM. `as_of`: the expression of AS OF
    TIMESTAMP.
    """

    items: list[tuple[Node, str]]
    source: tuple[str, ...] = ()
    sample: bool = False
    as_of: Node | None = None
    where: Node | None = None
    order: list[tuple[Node, bool]] = field(default_factory=list)
    """Expressions, each with whether it descends."""
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """A table's rows in the order of their keys.

    `columns`: of the rows; `shown`: what `*` gives.
    """

    table: Table | None
    columns: list[Column]
    shown: list[Column]
    rows: Iterable[list[Any]]
    region_rows: int = 1
    ordered_by: tuple[str, ...] = ()
    """Columns (lower case) in whose order the rows come."""


def read_select(parser: Parser) -> Select:
    """Parse what follows the word SELECT. SQLError SYNTAX_ERROR."""
    select = Select([_item(parser)])
    while parser.accept(","):
        select.items.append(_item(parser))
    if parser.accept("FROM"):
        select.source = tuple(parser.names())
        _read_table_options(parser, select)
    if parser.accept("WHERE"):
        select.where = parser.expression()
    if parser.accept("ORDER", "BY"):
        select.order.append(_ordering(parser))
        while parser.accept(","):
            select.order.append(_ordering(parser))
    if parser.accept("LIMIT"):
        select.limit = _number(parser)
        if parser.accept(","):
            select.offset, select.limit = select.limit, _number(parser)
        elif parser.accept("OFFSET"):
            select.offset = _number(parser)
    parser.accept("FOR", "UPDATE")
    parser.end()
    return select


def _item(parser: Parser) -> tuple[Node, str]:
    since = parser.here.at
    node = parser.expression()
    text = parser.source(since)
    if parser.accept("AS"):
        return node, str(parser.take().value)
    if (
        parser.here.kind in ("name", "word")
        and not parser.is_word("FROM")
        and not parser.is_word("LIMIT")
    ):
        return node, parser.name()
    return node, node[1] if node[0] == "column" else text


def _read_table_options(parser: Parser, select: Select) -> None:
    while True:
        if parser.accept("TABLESAMPLE"):
            parser.expect("REGIONS", "(", ")")
            select.sample = True
        elif parser.accept("AS", "OF", "TIMESTAMP"):
            select.as_of = parser.expression()
        elif parser.accept("FORCE", "INDEX", "(") or parser.accept("USE", "INDEX", "("):
            while not parser.accept(")"):
                parser.take()
        elif parser.accept("AS") or (
            parser.here.kind in ("name", "word")
            and not any(parser.is_word(word) for word in _AFTER_TABLE)
        ):
            parser.name()
        else:
            return


def _ordering(parser: Parser) -> tuple[Node, bool]:
    node = parser.expression()
    descending = parser.accept("DESC")
    if not descending:
        parser.accept("ASC")
    return node, descending


def _number(parser: Parser) -> int:
    token = parser.take()
    if token.kind != "value" or not isinstance(token.value, int):
        raise syntax_error(str(token.value))
    return token.value


class Executor:
    """Execute one SELECT over `given`.

    `scope` resolves the names of columns; `charset`: @@character_set_results.
    """

    def __init__(self, select: Select, given: Input, scope: Scope, charset: str) -> None:
        self._select, self._given, self._scope, self._charset = select, given, scope, charset

    def run(self) -> Result:
        """Return the result set, whose rows are made as they are taken."""
        items: list[tuple[Node, str]] = []
        for node, name in self._select.items:
            if node[0] == "star":
                items += [(("column", column.name), column.name) for column in self._given.shown]
            else:
                items.append((node, name))
        if any(node[0] == "call" and node[1] in _AGGREGATES for node, _ in items):
            return self._aggregated(items)
        evaluators = [compile_expression(node, self._scope) for node, _ in items]
        rows: Iterator[list[Any]] = (
            [value(row) for value in evaluators] for row in self._limited(self._chosen())
        )
        first = next(rows, None)
        headers = [self._header(n, item, first) for n, item in enumerate(items)]
        return Result(headers, itertools.chain([] if first is None else [first], rows))

    def _chosen(self) -> Iterator[list[Any]]:
        rows = iter(self._given.rows)
        if self._select.sample:
            rows = itertools.islice(rows, 0, None, self._given.region_rows)
        if self._select.where is not None:
            wanted = compile_expression(self._select.where, self._scope)
            rows = (row for row in rows if is_true(wanted(row)))
        if self._select.order and not self._comes_in_order():
            rows = iter(self._sorted(list(rows)))
        return rows

    def _comes_in_order(self) -> bool:
        wanted = [(node, descending) for node, descending in self._select.order]
        names = [
            node[1].lower() for node, descending in wanted if node[0] == "column" and not descending
        ]
        return len(names) == len(wanted) and tuple(names) == self._given.ordered_by[: len(names)]

    def _sorted(self, rows: list[list[Any]]) -> list[list[Any]]:
        for node, descending in reversed(self._select.order):
            value_of = compile_expression(node, self._scope)
            column = self._scope.column(node[1])[1] if node[0] == "column" else None
            convert = values.sorter(column) if column is not None else values.plain
            rows.sort(key=_sort_key(value_of, convert), reverse=descending)
        return rows

    def _limited(self, rows: Iterator[list[Any]]) -> Iterator[list[Any]]:
        start, limit = self._select.offset, self._select.limit
        return itertools.islice(rows, start, None if limit is None else start + limit)

    def _header(self, at: int, item: tuple[Node, str], first: list[Any] | None) -> Header:
        node, name = item
        if node[0] == "column":
            column = self._scope.column(node[1])[1]
            return results.of_column(column, name, self._given.table, self._charset)
        kind = _static_kind(node)
        return results.computed(
            name, kind if kind is not None else results.kind_of(first[at] if first else None)
        )

    def _aggregated(self, items: list[tuple[Node, str]]) -> Result:
        found = list(self._chosen())
        headers, row = [], []
        for node, name in items:
            if node[0] != "call" or node[1] not in _AGGREGATES:
                raise SQLError(
                    server_errors.MIXES_AGGREGATES,
                    "the stand-in has no GROUP BY: aggregates and columns don't go together",
                )
            argument: Node = node[2][0] if node[2] else ("star",)
            value = self._aggregate(node[1], argument, found)
            row.append(value)
            column = self._scope.column(argument[1])[1] if argument[0] == "column" else None
            if column is not None and node[1] in ("MIN", "MAX"):
                headers.append(results.of_column(column, name, None, self._charset))
            else:
                headers.append(results.computed(name, results.kind_of(value)))
        return Result(headers, [row])

    def _aggregate(self, name: str, argument: Node, rows: list[list[Any]]) -> Any:
        if argument[0] == "star":
            return len(rows)
        value_of = compile_expression(argument, self._scope)
        found = [value for row in rows if (value := value_of(row)) is not None]
        if name == "COUNT":
            return len(found)
        if not found:
            return None
        if name == "SUM":
            with localcontext(prec=DIGITS):
                return sum((values.as_number(value) for value in found), Decimal(0))
        column = self._scope.column(argument[1])[1] if argument[0] == "column" else None
        convert = values.sorter(column) if column is not None else values.plain
        return min(found, key=convert) if name == "MIN" else max(found, key=convert)


def _sort_key(value_of: Evaluator, convert: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    def key(row: list[Any]) -> Any:
        value = value_of(row)
        return (0,) if value is None else (1, convert(value))

    return key


def _static_kind(node: Node) -> int | None:
    """Return the type of a computed value where it doesn't depend on the rows."""
    if node[0] in ("compare", "in", "like", "null", "and", "or", "not"):
        return BIGINT
    if node[0] == "arith" and any(
        part[0] == "value" and isinstance(part[1], float) for part in node[2:]
    ):
        return DOUBLE
    return None
