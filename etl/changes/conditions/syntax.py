"""Parse a condition into a tree.

    amount > 100 AND status IN ('paid', 'sent')
    old.status = 'paid' AND new.status IS NULL
    note LIKE '%refund%' OR at BETWEEN '2026-11-22 09:00:00' AND '2026-11-22 10:00:00'

Comparisons of columns with constants or columns (= <> != < <= > >= <=> IN BETWEEN LIKE IS NULL),
joined by AND, OR, NOT and parentheses, bound as MySQL binds them. There are no functions.
"""

from __future__ import annotations

import contextlib
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
    r"""|(?P<sign><=>|<=|>=|<>|!=|[=<>(),.+*-])|(?P<end>\Z))"""
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
    return _ConditionParser(text).read()


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


class TokenParser:
    """Read the tokens of a text: names, constants and words."""

    def __init__(self, text: str) -> None:
        """Cut the text into tokens. Raises ConditionError."""
        if len(text) > _MAX_CHARACTERS:
            raise ConditionError(f"{len(text)} characters; at most {_MAX_CHARACTERS} are read")
        self.tokens = list(_tokens(text))
        self.at = 0
        self._depth = 0

    def refuse_empty(self, what: str) -> None:
        """Raise ConditionError if there is no token."""
        if self.tokens[0][0] == "end":
            raise ConditionError(what)

    def refuse_rest(self, what: str) -> None:
        """Raise ConditionError if a token is left; `what`: what should have ended."""
        if self.tokens[self.at][0] != "end":
            raise ConditionError(f"{self.context()} after {what}")

    def context(self) -> str:
        """Return the next token, for messages."""
        kind, text = self.tokens[self.at]
        return "the end" if kind == "end" else repr(text[:40])

    def word(self, *words: str) -> str:
        """Consume the next token, if it is one of these words or signs, and return it, else ""."""
        kind, text = self.tokens[self.at]
        if kind in ("word", "sign") and text.upper() in words:
            self.at += 1
            return text.upper()
        return ""

    def expect(self, word: str) -> None:
        """Consume this word or sign. Raises ConditionError if another token comes."""
        if not self.word(word):
            raise ConditionError(f"{word} expected, not {self.context()}")

    @contextlib.contextmanager
    def nested(self, what: str) -> Iterator[None]:
        """Go one level down. Raises ConditionError if these are too many."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConditionError(f"more than {_MAX_DEPTH} {what} inside of each other")
        try:
            yield
        finally:
            self._depth -= 1

    def operand(self) -> Operand:
        """Consume a column or a constant. Raises ConditionError."""
        kind, text = self.tokens[self.at]
        if kind in ("end", "sign"):
            raise ConditionError(f"a column or a constant expected, not {self.context()}")
        self.at += 1
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
        if self.word("."):
            side = text.lower()
            kind, text = self.tokens[self.at]
            if side not in ("old", "new") or kind not in ("word", "quoted"):
                raise ConditionError(
                    "before a column's name there can be old. or new., nothing else"
                )
            self.at += 1
        elif text.upper() in _RESERVED_WORDS:
            raise ConditionError(f"a column or a constant expected, not {text!r}")
        elif self.tokens[self.at] == ("sign", "("):
            raise ConditionError(f"{text}(…): there are no functions here")
        name = folded(text[1:-1].replace("``", "`") if text.startswith("`") else text)
        return ColumnName(name, side)


class _ConditionParser(TokenParser):
    """Read a condition by descent: OR, AND, NOT, comparison."""

    def read(self) -> Node:
        self.refuse_empty("an empty condition")
        node = self._or()
        self.refuse_rest("the condition's end")
        return node

    def _or(self) -> Node:
        node = self._and()
        while self.word("OR"):
            node = Or(node, self._and())
        return node

    def _and(self) -> Node:
        node = self._primary()
        while self.word("AND"):
            node = And(node, self._primary())
        return node

    def _primary(self) -> Node:
        with self.nested("conditions"):
            if self.word("NOT"):
                return Not(self._primary())
            if self.word("("):
                node = self._or()
                self.expect(")")
                return node
            return self._comparison()

    def _comparison(self) -> Node:
        left = self.operand()
        if self.word("IS"):
            negated = bool(self.word("NOT"))
            self.expect("NULL")
            return Not(Is(left)) if negated else Is(left)
        if self.word("NOT"):
            return Not(self._set_comparison(left) or self._refuse("after NOT"))
        found = self._set_comparison(left)
        if found is not None:
            return found
        sign = self.word(*_COMPARATORS)
        if not sign:
            raise ConditionError(f"a comparison expected, not {self.context()}")
        return _compared("<>" if sign == "!=" else sign, left, self.operand())

    def _refuse(self, where: str) -> Node:
        raise ConditionError(f"IN, BETWEEN or LIKE expected {where}, not {self.context()}")

    def _set_comparison(self, left: Operand) -> Node | None:
        """Read IN, BETWEEN or LIKE; None if none of them comes."""
        if self.word("IN"):
            return self._listed(left)
        if self.word("BETWEEN"):
            low = _compared(">=", left, self.operand())
            self.expect("AND")
            return And(low, _compared("<=", left, self.operand()))
        if self.word("LIKE"):
            pattern = self.operand()
            if not isinstance(left, ColumnName) or not (
                isinstance(pattern, Constant) and isinstance(pattern.value, str)
            ):
                raise ConditionError("LIKE compares a column with a text in quotes")
            return Like(left, pattern.value)
        return None

    def _listed(self, left: Operand) -> Node:
        self.expect("(")
        node: Node = _compared("=", left, self.operand())
        while self.word(","):
            node = Or(node, _compared("=", left, self.operand()))
        self.expect(")")
        return node


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
