"""Find the partition in which a row lies, from TiDB's PartitionInfo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sluice.devstack.tidb.sql.evaluate import Evaluator, Scope, compile_expression
from sluice.devstack.tidb.sql.parse import Parser
from sluice.tidb.codec.column_value import from_datum, missing_value
from sluice.tidb.codec.datum import Datum
from sluice.tidb.schema import Table

_RANGE, _HASH, _LIST = 1, 2, 3


def ids(table: Table) -> set[int]:
    """Return the ids of a table's partitions."""
    return {
        int(definition["id"]) for definition in (table.partition or {}).get("definitions") or ()
    }


def place(table: Table, row: Mapping[int, Datum]) -> int:
    """Return the id of the partition of a row; 0 where the stand-in can't evaluate it."""
    info = table.partition or {}
    values = {
        c.id: from_datum(c, row[c.id]) if c.id in row else missing_value(c)
        for c in table.stored_columns
    }
    ordered = [values[c.id] for c in table.stored_columns]
    found = [expression(ordered) for expression in _expressions(_Hashed(table))]
    definitions = info.get("definitions") or []
    if info["type"] == _HASH and definitions:
        return int(definitions[abs(int(found[0] or 0)) % len(definitions)]["id"])
    for definition in definitions:
        if info["type"] == _RANGE and _below(found, definition.get("less_than") or []):
            return int(definition["id"])
        if info["type"] == _LIST and any(
            _same(found, item) for item in definition.get("in_values") or ()
        ):
            return int(definition["id"])
    return 0


class _Hashed:
    """A table for a cache: equal if its columns and its partitioning are."""

    def __init__(self, table: Table) -> None:
        self.table = table
        info = table.partition or {}
        names = tuple(column["O"] for column in info.get("columns") or ())
        self._what = (
            table.id,
            tuple(c.name for c in table.stored_columns),
            info.get("expr") or "",
            names,
        )
        self.texts = [f"`{name}`" for name in names] or [info.get("expr") or "0"]

    def __hash__(self) -> int:
        return hash(self._what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._what == other._what


@lru_cache(maxsize=256)
def _expressions(hashed: _Hashed) -> list[Evaluator]:
    columns = {c.name.lower(): (n, c) for n, c in enumerate(hashed.table.stored_columns)}
    scope = Scope(columns, lambda name: None, {})
    return [compile_expression(Parser(text).expression(), scope) for text in hashed.texts]


def _literal(text: str) -> Any:
    return compile_expression(Parser(text).expression(), Scope({}, lambda name: None, {}))([])


def _comparable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return Decimal(value) if isinstance(value, int) else value


def _below(found: list[Any], bounds: Sequence[str]) -> bool:
    for value, bound in zip(found, bounds):
        if bound.upper() == "MAXVALUE" or value is None:
            return True
        have, limit = _comparable(value), _comparable(_literal(bound))
        if have != limit:
            return bool(have < limit)
    return False


def _same(found: list[Any], texts: Sequence[str]) -> bool:
    return [_comparable(value) for value in found] == [
        _comparable(_literal(text)) for text in texts
    ]
