"""Parse a condition into a tree.

    amount > 100 AND status IN ('paid', 'sent')
    old.status = 'paid' AND new.status IS NULL
    note LIKE '%refund%' OR at BETWEEN '2026-11-22 09:00:00' AND '2026-11-22 10:00:00'

Comparisons of columns with constants or columns (= <> != < <= > >= <=> IN BETWEEN LIKE IS NULL),
joined by AND, OR, NOT and parentheses, bound as MySQL binds them. There are no functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from sluice.errors import RequestError
from sluice.tidb.folded import folded

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
_COMPARATORS = ("<=>", "=", "<>", "!=", "<", "<=", ">", ">=")


class ConditionError(RequestError, ValueError):
    """A condition that can't be read, or that makes no sense for a column."""


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column by its name in lower case; `side`: "old", "new", or "" for the row looked at."""

    name: str
    side: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant: numbers as Decimal, NULL as None; `text` as it was written."""

    value: Decimal | str | bytes | None
    text: str = ""

    @property
    def is_float(self) -> bool:
        """Return whether SQL takes the number for a DOUBLE."""
        return isinstance(self.value, Decimal) and "e" in self.text.lower()


Operand = ColumnName | Constant


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left sign right`; the sign is one of = <> < <= > >= <=>."""

    sign: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Is:
    """`operand IS NULL`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Like:
    """`column LIKE pattern`."""

    column: ColumnName
    pattern: str


@dataclass(frozen=True, slots=True)
class Not:
    """NOT."""

    part: Node


@dataclass(frozen=True, slots=True)
class And:
    """Parts joined by AND."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Or:
    """Parts joined by OR."""

    left: Node
    right: Node


Node = Comparison | Is | Like | Not | And | Or


def parse_condition(text: str) -> Node:
    """Return the tree of a condition. Raises ConditionError."""
    if len(text) > _MAX_CHARACTERS:
        raise ConditionError(f"{len(text)} characters; at most {_MAX_CHARACTERS} are read")
    return _Parser(text).read()


def column_names(node: Node) -> Iterator[ColumnName]:
    """Yield the columns that a condition names, from left to right."""
    match node:
        case Comparison(_, left, right):
            yield from (one for one in (left, right) if isinstance(one, ColumnName))
        case Is(operand):
            yield from (operand,) if isinstance(operand, ColumnName) else ()
        case Like(column, _):
            yield column
        case Not(part):
            yield from column_names(part)
        case And(left, right) | Or(left, right):
            yield from column_names(left)
            yield from column_names(right)


class _Parser:
    """Read a condition by descent: OR, AND, NOT, comparison."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def read(self) -> Node:
        if self._tokens[0][0] == "end":
            raise ConditionError("an empty condition")
        node = self._or()
        if self._tokens[self._at][0] != "end":
            raise ConditionError(f"{self._context()} after the condition's end")
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
            raise ConditionError(f"{word} expected, not {self._context()}")

    def _or(self) -> Node:
        node = self._and()
        while self._word("OR"):
            node = Or(node, self._and())
        return node

    def _and(self) -> Node:
        node = self._primary()
        while self._word("AND"):
            node = And(node, self._primary())
        return node

    def _primary(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConditionError(f"more than {_MAX_DEPTH} conditions inside of each other")
        try:
            if self._word("NOT"):
                return Not(self._primary())
            if self._word("("):
                node = self._or()
                self._expect(")")
                return node
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Node:
        left = self._operand()
        if self._word("IS"):
            negated = bool(self._word("NOT"))
            self._expect("NULL")
            return Not(Is(left)) if negated else Is(left)
        if self._word("NOT"):
            return Not(self._set_comparison(left) or self._refuse("after NOT"))
        found = self._set_comparison(left)
        if found is not None:
            return found
        sign = self._word(*_COMPARATORS)
        if not sign:
            raise ConditionError(f"a comparison expected, not {self._context()}")
        return _compared("<>" if sign == "!=" else sign, left, self._operand())

    def _refuse(self, where: str) -> Node:
        raise ConditionError(f"IN, BETWEEN or LIKE expected {where}, not {self._context()}")

    def _set_comparison(self, left: Operand) -> Node | None:
        """Read IN, BETWEEN or LIKE; None if none of them comes."""
        if self._word("IN"):
            return self._listed(left)
        if self._word("BETWEEN"):
            low = _compared(">=", left, self._operand())
            self._expect("AND")
            return And(low, _compared("<=", left, self._operand()))
        if self._word("LIKE"):
            pattern = self._operand()
            if not isinstance(left, ColumnName) or not (
                isinstance(pattern, Constant) and isinstance(pattern.value, str)
            ):
                raise ConditionError("LIKE compares a column with a text in quotes")
            return Like(left, pattern.value)
        return None

    def _listed(self, left: Operand) -> Node:
        self._expect("(")
        node: Node = _compared("=", left, self._operand())
        while self._word(","):
            node = Or(node, _compared("=", left, self._operand()))
        self._expect(")")
        return node

    def _operand(self) -> Operand:
        kind, text = self._tokens[self._at]
        if kind in ("end", "sign"):
            raise ConditionError(f"a column or a constant expected, not {self._context()}")
        self._at += 1
        match kind:
            case "hex":
                raw = text.strip("xX'") if "'" in text else text[2:]
                return Constant(bytes.fromhex(raw), text)
            case "text":
                return Constant(text[1:-1].replace(text[0] * 2, text[0]), text)
            case "number":
                return Constant(Decimal(text), text)
        if kind == "word" and text.upper() in _KEYWORD_VALUES:
            return _KEYWORD_VALUES[text.upper()]
        return self._name(text)

    def _name(self, text: str) -> ColumnName:
        side = ""
        if self._word("."):
            side = text.lower()
            kind, text = self._tokens[self._at]
            if side not in ("old", "new") or kind not in ("word", "quoted"):
                raise ConditionError(
                    "before a column's name there can be old. or new., nothing else"
                )
            self._at += 1
        elif text.upper() in _RESERVED_WORDS:
            raise ConditionError(f"a column or a constant expected, not {text!r}")
        elif self._tokens[self._at] == ("sign", "("):
            raise ConditionError(f"{text}(…): there are no functions here")
        name = folded(text[1:-1].replace("``", "`") if text.startswith("`") else text)
        return ColumnName(name, side)


_KEYWORD_VALUES = {
    "NULL": Constant(None, "NULL"),
    "TRUE": Constant(Decimal(1), "1"),
    "FALSE": Constant(Decimal(0), "0"),
}
_RESERVED_WORDS = {"AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "SELECT", "EXISTS"}


def _compared(sign: str, left: Operand, right: Operand) -> Comparison:
    if not isinstance(left, ColumnName) and not isinstance(right, ColumnName):
        raise ConditionError("a comparison without a column")
    return Comparison(sign, left, right)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ConditionError(f"{text[at : at + 40].strip()!r} can't be read")
        yield match.lastgroup, match[match.lastgroup]
        if match.lastgroup == "end":
            return
        at = match.end()
