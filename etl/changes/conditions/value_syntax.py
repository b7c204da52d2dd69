"""Parse an expression that computes a value from a row's columns into a tree.

    concat(first, ' ', last)
    price * amount - coalesce(rebate, 0)
    cast(total as decimal(20, 2))

Names, constants, the functions of `FUNCTIONS`, CAST, `+`, `-`, `*` and parentheses, bound as MySQL
binds them. Names and constants are those of a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.etl.changes.conditions.syntax import (
    ColumnName,
    ConditionError,
    Constant,
    Operand,
    TokenParser,
)

FUNCTIONS: dict[str, tuple[int, int | None]] = {
    "concat": (1, None),
    "concat_ws": (2, None),
    "lower": (1, 1),
    "upper": (1, 1),
    "left": (2, 2),
    "right": (2, 2),
    "substring": (2, 3),
    "coalesce": (1, None),
    "ifnull": (2, 2),
    "date": (1, 1),
    "year": (1, 1),
    "month": (1, 1),
    "day": (1, 1),
}
"""The fewest and the most arguments of each function, None for no limit."""
_ALIASES = {"substr": "substring", "lcase": "lower", "ucase": "upper", "dayofmonth": "day"}
_CASTS = ("CHAR", "SIGNED", "DECIMAL")


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `FUNCTIONS`, in lower case, and its arguments."""

    function: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left sign right`; the sign is one of + - *."""

    sign: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Cast:
    """`CAST(value AS target)`: CHAR, SIGNED or DECIMAL, of `precision` and `scale` digits."""

    value: Value
    target: str
    precision: int = 0
    scale: int = 0


Value = Operand | Call | Arithmetic | Cast


def parse_value(text: str) -> Value:
    """Return the tree of an expression. Raises ConditionError."""
    return _ValueParser(text).read()


def value_columns(value: Value) -> Iterator[ColumnName]:
    """Yield the columns that an expression names, from left to right."""
    match value:
        case ColumnName():
            yield value
        case Call(_, arguments):
            for argument in arguments:
                yield from value_columns(argument)
        case Arithmetic(_, left, right):
            yield from value_columns(left)
            yield from value_columns(right)
        case Cast(inner):
            yield from value_columns(inner)


class _ValueParser(TokenParser):
    """Read an expression by descent: sum, product, factor."""

    def read(self) -> Value:
        self.refuse_empty("an empty expression")
        value = self._sum()
        self.refuse_rest("the expression's end")
        if side := next((name.side for name in value_columns(value) if name.side), ""):
            raise ConditionError(f"{side}.: an expression knows no row before or after a change")
        return value

    def _sum(self) -> Value:
        value = self._product()
        while sign := self._sign():
            value = Arithmetic(sign, value, self._product())
        return value

    def _sign(self) -> str:
        """Consume a plus or minus, also that of a number which follows an operand: `a -1`."""
        if sign := self.word("+", "-"):
            return sign
        kind, text = self.tokens[self.at]
        if kind != "number" or text[0] not in "+-":
            return ""
        self.tokens[self.at] = (kind, text[1:])
        return text[0]

    def _product(self) -> Value:
        value = self._factor()
        while self.word("*"):
            value = Arithmetic("*", value, self._factor())
        return value

    def _factor(self) -> Value:
        with self.nested("expressions"):
            if self.word("("):
                value = self._sum()
                self.expect(")")
                return value
            kind, text = self.tokens[self.at]
            if kind == "word" and self.tokens[self.at + 1] == ("sign", "("):
                self.at += 2
                return self._cast() if text.lower() == "cast" else self._call(text.lower())
            return self.operand()

    def _call(self, word: str) -> Value:
        function = _ALIASES.get(word, word)
        if function not in FUNCTIONS:
            raise ConditionError(
                f"{word}(…): there is no such function here, but {', '.join(FUNCTIONS)} and cast"
            )
        arguments = [self._sum()]
        while self.word(","):
            arguments.append(self._sum())
        self.expect(")")
        fewest, most = FUNCTIONS[function]
        if len(arguments) < fewest or (most is not None and len(arguments) > most):
            some = " or more" if most is None else f" to {most}" if most > fewest else ""
            raise ConditionError(f"{word}(…) takes {fewest}{some} arguments, not {len(arguments)}")
        return Call(function, tuple(arguments))

    def _cast(self) -> Value:
        value = self._sum()
        self.expect("AS")
        target = self.word(*_CASTS)
        if not target:
            raise ConditionError(f"{', '.join(_CASTS)} expected, not {self.context()}")
        precision, scale = 10, 0
        if target == "DECIMAL" and self.word("("):
            precision = self._digits()
            scale = self._digits() if self.word(",") else 0
            self.expect(")")
        self.expect(")")
        return Cast(value, target, *((precision, scale) if target == "DECIMAL" else ()))

    def _digits(self) -> int:
        found = self.operand()
        if not isinstance(found, Constant) or not found.text.isdecimal():
            raise ConditionError("DECIMAL(precision, scale) takes two numbers of digits")
        return int(found.text)
