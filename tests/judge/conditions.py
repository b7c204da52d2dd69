"""Conditions of row rules: their text, and for which rows they hold, in plain Python.

`None` is SQL's unknown. Nothing of this is Sluice's: it is what TiDB's documentation says.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.judge.kinds import Kind
from tests.judge.tables import quoted

Cells = Mapping[str, tuple[Kind, Any]]
"""A row: by column name in lower case, the column's type and the value."""
Truth = bool | None

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS = ("int", "decimal", "float", "double", "year", "bit")
_MOMENTS = ("date", "datetime", "timestamp")
_EQUALITIES = ("=", "<>", "<=>")
_SIGNS = (*_COMPARE, "<=>")
_ODD = set("\\\0\n\x1a\t")


@dataclass(frozen=True)
class Leaf:
    """A comparison of a column. `side`: "old", "new" or "" for the row looked at."""

    column: str
    kind: Kind
    text: str
    holds: Callable[[Any, Cells], Truth]
    side: str = ""
    other: str = ""
    """Another column that it names."""


@dataclass(frozen=True)
class Joined:
    """Two conditions with AND or OR between them."""

    word: str
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Negated:
    """NOT."""

    part: Condition


Condition = Leaf | Joined | Negated


def text_of(condition: Condition) -> str:
    """Return the condition as in the settings."""
    match condition:
        case Leaf(column, _, text, _, side):
            return text.format(f"{side}.{quoted(column)}" if side else quoted(column))
        case Negated(part):
            return f"NOT ({text_of(part)})"
        case Joined(word, left, right):
            return f"({text_of(left)}) {word} ({text_of(right)})"


def leaves(condition: Condition) -> list[Leaf]:
    """Return its comparisons."""
    match condition:
        case Leaf():
            return [condition]
        case Negated(part):
            return leaves(part)
        case Joined(_, left, right):
            return leaves(left) + leaves(right)


def truth(condition: Condition, old: Cells | None, new: Cells | None, side: str) -> Truth:
    """Return what it is for the row on a side of a change; None: unknown."""
    match condition:
        case Leaf(column, _, _, holds, own):
            row = old if (own or side) == "old" else new
            if row is None:
                return holds(None, {})
            return holds(row[column.lower()][1], row)
        case Negated(part):
            found = truth(part, old, new, side)
            return None if found is None else not found
        case Joined(word, left, right):
            both = truth(left, old, new, side), truth(right, old, new, side)
            decides = word == "OR"
            if decides in both:
                return decides
            return None if None in both else not decides


def comparable(kind: Kind) -> bool:
    """Return whether rules may compare values of the type."""
    if kind.family == "text":
        return kind.charset != "gbk" and kind.collate.endswith(("_bin", "general_ci"))
    return kind.family not in ("json", "set")


def invented(
    rng: random.Random,
    columns: list[tuple[str, Kind]],
    new_collation: bool,
    *,
    with_sides: bool = False,
    depth: int = 0,
) -> Condition:
    """Return a condition over the columns. `with_sides`: it may name rows before and after."""
    if depth < 2 and rng.random() < 0.45:
        more = [
            invented(rng, columns, new_collation, with_sides=with_sides, depth=depth + 1)
            for _ in range(2)
        ]
        if rng.random() < 0.2:
            return Negated(more[0])
        return Joined(rng.choice(("AND", "OR", "OR")), *more)
    name, kind = rng.choice(columns)
    side = rng.choice(("", "old", "new")) if with_sides else ""
    if not comparable(kind) or rng.random() < 0.1:
        return _null_test(rng, name, kind, side)
    alike = [other for other, its in columns if its is kind and other != name]
    if alike and not side and kind.family != "enum" and rng.random() < 0.3:
        return _two_columns(rng, name, kind, rng.choice(alike), new_collation)
    return _with_constants(rng, name, kind, side, new_collation)


def _null_test(rng: random.Random, name: str, kind: Kind, side: str) -> Leaf:
    if rng.random() < 0.5:
        return Leaf(name, kind, "{} IS NULL", lambda value, _: value is None, side)
    return Leaf(name, kind, "{} IS NOT NULL", lambda value, _: value is not None, side)


def _two_columns(
    rng: random.Random, name: str, kind: Kind, other: str, new_collation: bool
) -> Leaf:
    sign = rng.choice(tuple(_COMPARE))

    def holds(value: Any, row: Cells) -> Truth:
        right = row[other.lower()][1] if row else None
        if value is None or right is None:
            return None
        return _COMPARE[sign](*(_key(kind, each, new_collation) for each in (value, right)))

    return Leaf(name, kind, f"{{}} {sign} {_escaped(quoted(other))}", holds, other=other)


def _with_constants(
    rng: random.Random, name: str, kind: Kind, side: str, new_collation: bool
) -> Leaf:
    def key(value: Any) -> Any:
        return _key(kind, value, new_collation)

    how = rng.random()
    if how < 0.2:
        values = [_constant(kind, rng) for _ in range(rng.randint(1, 3))]
        texts = ", ".join(_literal(kind, value) for value in values)

        def among(value: Any, _: Cells) -> Truth:
            return None if value is None else key(value) in map(key, values)

        return Leaf(name, kind, f"{{}} IN ({_escaped(texts)})", among, side)
    if how < 0.35 and kind.family != "enum":
        low, high = _constant(kind, rng), _constant(kind, rng)

        def between(value: Any, _: Cells) -> Truth:
            return None if value is None else key(low) <= key(value) <= key(high)

        texts = f"{_literal(kind, low)} AND {_literal(kind, high)}"
        return Leaf(name, kind, f"{{}} BETWEEN {_escaped(texts)}", between, side)
    sign = rng.choice(_EQUALITIES if kind.family == "enum" else _SIGNS)
    constant = _constant(kind, rng)

    def holds(value: Any, _: Cells) -> Truth:
        if value is None:
            return False if sign == "<=>" else None
        return _COMPARE["=" if sign == "<=>" else sign](key(value), key(constant))

    return Leaf(name, kind, f"{{}} {sign} {_escaped(_literal(kind, constant))}", holds, side)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _constant(kind: Kind, rng: random.Random) -> Any:
    while True:
        value = kind.value(rng)
        if kind.family == "text" and (set(value.decode()) & _ODD or not value.isascii()):
            continue
        if kind.family == "enum" and set(value) & _ODD:
            continue
        if kind.family == "float":
            return rng.choice((0.5, -1.25, 100.125))
        return value


def _literal(kind: Kind, value: Any) -> str:
    match kind.family:
        case "decimal":
            return f"{value:f}"
        case "double" | "float":
            return repr(value)
        case "year":
            return str(value)
        case family if family in _NUMBERS:
            return str(value)
        case "bytes":
            return f"x'{value.hex()}'"
        case "text":
            return "'" + value.decode().replace("'", "''") + "'"
    return "'" + value.replace("'", "''") + "'"


def _key(kind: Kind, value: Any, new_collation: bool) -> Any:
    """Return what a value compares as."""
    match kind.family:
        case "text":
            if not new_collation:
                return value
            bare = value.rstrip(b" ")
            return bare.upper() if kind.collate.endswith("general_ci") else bare
        case "decimal":
            return Decimal(value)
        case "time":
            return _microseconds(value)
    return value


def _microseconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    clock, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    whole = (hours * 60 + minutes) * 60 + seconds
    return sign * (whole * 10**6 + int(fraction.ljust(6, "0") or 0))
