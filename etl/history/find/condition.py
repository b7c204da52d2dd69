"""Parse and evaluate conditions over the columns of row changes.

They are evaluated here: nothing of them reaches a server.

    amount > 100 AND status IN ('paid', 'sent')
    old.status = 'paid' AND new.status IS NULL
    old.balance <> new.balance
    note LIKE '%refund%' OR at BETWEEN '2026-11-22 09:00:00' AND '2026-11-22 10:00:00'

A change fits if the row as it was before, or as it was after, does; `old.` and `new.` select one of
the two images. Of an insert everything before is NULL, of a delete everything after. Comparisons
with NULL are unknown, as in SQL. Text is compared by its code points, whatever collation the column
has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.history.errors import ConditionError
from sluice.etl.history.find._values import Constant, comparable, comparison_family, constant_for
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_MAX_CHARACTERS = 10_000
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<hex>[xX]'(?:[0-9a-fA-F]{2})*'|0[xX](?:[0-9a-fA-F]{2})+(?![\w$]))"""
    r"""|(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")"""
    r"""|(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))"""
    r"""|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<word>[A-Za-z_$\x80-\U0010ffff][\w$\x80-\U0010ffff]*)"""
    r"""|(?P<sign><=>|<=|>=|<>|!=|[=<>(),.])|(?P<end>\Z))"""
)
_COMPARATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}
Images = Mapping[str, pa.Array]
"""Columns by name."""


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Row changes of one kind in one table, as it was then.

    They are `old` and `new` images, None where the kind has none.
    """

    table: Table
    count: int
    old: Images | None
    new: Images | None


@dataclass(frozen=True, slots=True)
class _ColumnName:
    name: str
    side: str = ""
    """old, new, or "": the one that is being looked at."""

    def find(self, rows: ChangeRows, side: str) -> tuple[Column, pa.Array] | None:
        images = rows.old if (self.side or side) == "old" else rows.new
        column = next((c for c in rows.table.stored_columns if folded(c.name) == self.name), None)
        return None if column is None or images is None else (column, images[column.name])


Operand = _ColumnName | Constant
_Node = Callable[[ChangeRows, str], pa.BooleanArray]


class RowCondition:
    """A parsed condition, `text`. Raises ConditionError."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_CHARACTERS:
            raise ConditionError(
                f"--where: {len(text)} characters; at most {_MAX_CHARACTERS} are read"
            )
        reader = _Parser(text)
        self._holds = reader.read()
        self.columns: frozenset[str] = frozenset(reader.columns)
        """The names of its columns, in lower case."""

    def fits(self, rows: ChangeRows) -> np.ndarray:
        """Return which changes fit (bool, one a change).

        A column that the table doesn't have there is NULL. Raises ConditionError for a constant
        that is no value of its column.
        """
        found = np.zeros(rows.count, bool)
        for side, images in (("old", rows.old), ("new", rows.new)):
            if images is not None:
                found |= np.asarray(pc.fill_null(self._holds(rows, side), fill_value=False))
        return found


class _Parser:
    """Read a condition by descent: OR, AND, NOT, comparison."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0
        self.columns: set[str] = set()

    def read(self) -> _Node:
        if self._tokens[0][0] == "end":
            raise ConditionError("--where: an empty condition")
        node = self._or()
        if self._tokens[self._at][0] != "end":
            raise ConditionError(f"--where: {self._context()} after the condition's end")
        return node

    def _context(self) -> str:
        kind, text = self._tokens[self._at]
        return "the end" if kind == "end" else repr(text[:40])

    def _word(self, *words: str) -> str:
        """Consume the next token, if it is one of these words or signs, and return it, else ""."""
        kind, text = self._tokens[self._at]
        if kind in ("word", "sign") and text.upper() in words:
            self._at += 1
            return text.upper()
        return ""

    def _expect(self, word: str) -> None:
        if not self._word(word):
            raise ConditionError(f"--where: {word} expected, not {self._context()}")

    def _or(self) -> _Node:
        node = self._and()
        while self._word("OR"):
            node = _both(pc.or_kleene, node, self._and())
        return node

    def _and(self) -> _Node:
        node = self._primary()
        while self._word("AND"):
            node = _both(pc.and_kleene, node, self._primary())
        return node

    def _primary(self) -> _Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConditionError(f"--where: more than {_MAX_DEPTH} conditions inside of each other")
        try:
            if self._word("NOT"):
                return _not(self._primary())
            if self._word("("):
                node = self._or()
                self._expect(")")
                return node
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> _Node:
        left = self._operand()
        if self._word("IS"):
            negated = bool(self._word("NOT"))
            self._expect("NULL")
            return _negated(negated, _is_null(left))
        negated = bool(self._word("NOT"))
        if self._word("IN"):
            return _negated(negated, self._listed(left))
        if self._word("BETWEEN"):
            low = _compared(">=", left, self._operand())
            self._expect("AND")
            return _negated(
                negated, _both(pc.and_kleene, low, _compared("<=", left, self._operand()))
            )
        if self._word("LIKE"):
            return _negated(negated, _like(left, self._operand()))
        if negated:
            raise ConditionError(
                f"--where: IN, BETWEEN or LIKE expected after NOT, not {self._context()}"
            )
        if self._word("<=>"):
            return _same(left, self._operand())
        sign = self._word("!=", *_COMPARATORS)
        if not sign:
            raise ConditionError(f"--where: a comparison expected, not {self._context()}")
        return _compared("<>" if sign == "!=" else sign, left, self._operand())

    def _listed(self, left: Operand) -> _Node:
        self._expect("(")
        node = _compared("=", left, self._operand())
        while self._word(","):
            node = _both(pc.or_kleene, node, _compared("=", left, self._operand()))
        self._expect(")")
        return node

    def _operand(self) -> Operand:
        kind, text = self._tokens[self._at]
        if kind in ("end", "sign"):
            raise ConditionError(f"--where: a column or a constant expected, not {self._context()}")
        self._at += 1
        match kind:
            case "hex":
                return bytes.fromhex(text.strip("xX'") if "'" in text else text[2:])
            case "text":
                return text[1:-1].replace(text[0] * 2, text[0])
            case "number":
                return Decimal(text)
        if kind == "word" and text.upper() in _KEYWORD_VALUES:
            return _KEYWORD_VALUES[text.upper()]
        return self._name(text)

    def _name(self, text: str) -> _ColumnName:
        side = ""
        if self._word("."):
            side = text.lower()
            kind, text = self._tokens[self._at]
            if side not in ("old", "new") or kind not in ("word", "quoted"):
                raise ConditionError(
                    "--where: before a column's name there can be old. or new., nothing else"
                )
            self._at += 1
        elif text.upper() in _RESERVED_WORDS:
            raise ConditionError(f"--where: a column or a constant expected, not {text!r}")
        elif self._tokens[self._at] == ("sign", "("):
            raise ConditionError(f"--where: {text}(…): there are no functions here")
        name = folded(text[1:-1].replace("``", "`") if text.startswith("`") else text)
        self.columns.add(name)
        return _ColumnName(name, side)


_KEYWORD_VALUES: dict[str, Constant] = {"NULL": None, "TRUE": Decimal(1), "FALSE": Decimal(0)}
_RESERVED_WORDS = {"AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "SELECT", "EXISTS"}


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ConditionError(f"--where: {text[at : at + 40].strip()!r} can't be read")
        yield match.lastgroup, match[match.lastgroup]
        if match.lastgroup == "end":
            return
        at = match.end()


def _both(join: Callable[..., pa.BooleanArray], left: _Node, right: _Node) -> _Node:
    return lambda rows, side: join(left(rows, side), right(rows, side))


def _not(node: _Node) -> _Node:
    return lambda rows, side: pc.invert(node(rows, side))


def _negated(negated: bool, node: _Node) -> _Node:  # noqa: FBT001 what was read
    return _not(node) if negated else node


def _unknown(rows: ChangeRows) -> pa.BooleanArray:
    return pa.nulls(rows.count, pa.bool_())


def _is_null(operand: Operand) -> _Node:
    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        if not isinstance(operand, _ColumnName):
            return pa.array(np.full(rows.count, operand is None))
        found = operand.find(rows, side)
        return pa.array(np.ones(rows.count, bool)) if found is None else pc.is_null(found[1])

    return holds


def _same(left: Operand, right: Operand) -> _Node:
    """Compile a comparison that holds for equal values and for two NULLs."""
    equal, nulls = _compared("=", left, right), _both(pc.and_, _is_null(left), _is_null(right))
    return lambda rows, side: pc.or_(
        pc.fill_null(equal(rows, side), fill_value=False), nulls(rows, side)
    )


def _compared(sign: str, left: Operand, right: Operand) -> _Node:
    compare = _COMPARATORS[sign]
    if isinstance(left, _ColumnName) and isinstance(right, _ColumnName):
        return _two_columns(compare, left, right)
    if isinstance(left, _ColumnName):
        return _with_constant(left, right, compare)
    if isinstance(right, _ColumnName):
        return _with_constant(right, left, lambda value, constant: compare(constant, value))
    raise ConditionError("--where: a comparison without a column")


def _with_constant(
    name: _ColumnName, constant: Operand, compare: Callable[[Any, Any], bool]
) -> _Node:
    assert not isinstance(constant, _ColumnName)

    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        found = name.find(rows, side)
        if found is None or constant is None:
            return _unknown(rows)
        wanted = constant_for(found[0], constant)
        return _map_distinct(found, lambda value: compare(value, wanted))

    return holds


def _map_distinct(found: tuple[Column, pa.Array], judge: Callable[[Any], bool]) -> pa.BooleanArray:
    """Return the result of `judge` for each value; equal values are judged once."""
    column, array = found
    coded = array.dictionary_encode()
    judged = [
        None if value is None else judge(value) for value in comparable(column, coded.dictionary)
    ]
    return pa.array(judged, pa.bool_()).take(coded.indices)


def _two_columns(
    compare: Callable[[Any, Any], bool], left: _ColumnName, right: _ColumnName
) -> _Node:
    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        a, b = left.find(rows, side), right.find(rows, side)
        if a is None or b is None:
            return _unknown(rows)
        if comparison_family(a[0]) != comparison_family(b[0]):
            raise ConditionError(
                f"--where: {a[0].name} ({a[0].kind}) and {b[0].name} ({b[0].kind}) can't be"
                " compared with each other"
            )
        pairs = zip(comparable(*a), comparable(*b), strict=True)
        return pa.array(
            [None if x is None or y is None else compare(x, y) for x, y in pairs], pa.bool_()
        )

    return holds


def _like(left: Operand, right: Operand) -> _Node:
    if not isinstance(left, _ColumnName) or not isinstance(right, str):
        raise ConditionError("--where: LIKE compares a column with a text in quotes")
    pattern = _arrow_pattern(right)

    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        found = left.find(rows, side)
        if found is None:
            return _unknown(rows)
        if comparison_family(found[0]) not in ("text", "bytes"):
            raise ConditionError(f"--where: LIKE is for text, {found[0].name} is {found[0].kind}")
        column, array = found
        coded = array.dictionary_encode()
        return _matches(pattern, comparable(column, coded.dictionary)).take(coded.indices)

    return holds


def _matches(pattern: str, values: list[Any]) -> pa.BooleanArray:
    """Match `values` (str, bytes or None) in time linear in their size.

    Arrow compiles LIKE to an RE2 automaton. A backtracking expression would let one request for
    `%a%a%a…` occupy Airflow's API server for hours.
    """
    texts = [None if value is None or not _is_unicode(value) else value for value in values]
    raw = [None if value is None or _is_unicode(value) else _as_bytes(value) for value in values]
    try:
        found = pc.match_like(pa.array(texts, pa.large_string()), pattern)
        return pc.coalesce(found, pc.match_like(pa.array(raw, pa.large_binary()), pattern))
    except pa.ArrowInvalid as error:
        raise ConditionError("--where: a LIKE pattern with too many signs") from error


def _is_unicode(value: str | bytes) -> bool:
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _arrow_pattern(text: str) -> str:
    r"""Double each backslash that escapes nothing.

    To Arrow every one escapes, in SQL those before `%`, `_`, `\`.
    """
    return re.sub(r"\\([%_\\])|\\", lambda found: found[0] if found[1] else "\\\\", text)
