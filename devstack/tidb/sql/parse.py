"""The little SQL that the stand-in reads: words, and expressions as nested tuples.

("value", v)  ("column", name)  ("variable", name)  ("call", NAME, [args])  ("row", [items])
("not", e)  ("and", a, b)  ("or", a, b)  ("compare", op, a, b)  ("null", e, wanted)
("in", e, [items], wanted)  ("like", e, pattern, wanted)  ("arith", op, a, b)  ("star",)
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, NamedTuple

from sluice.devstack.tidb.sql.errors import syntax_error

Node = tuple[Any, ...]

_TOKEN = re.compile(
    r"""(?P<space>\s+|/\*.*?\*/|--[ \t][^\n]*|\#[^\n]*)
      | (?P<hex>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![A-Za-z_]))
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<variable>@@?(?:`[^`]+`|[A-Za-z0-9_$.]+))
      | (?P<word>[A-Za-z_$\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*)
      | (?P<mark><=>|<=|>=|<>|!=|\|\||&&|[-+*/%(),.;=<>!])""",
    re.X | re.S,
)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_COMPARISONS = {"=", "<=>", "<", "<=", ">", ">=", "<>", "!="}


class Token(NamedTuple):
    """A token; `kind`: value, name (quoted), variable, word, mark or end.

    `at`: where it begins in the text.
    """

    kind: str
    value: Any
    at: int


def tokens(text: str) -> list[Token]:
    """Return the words of a statement without comments and hints. SQLError SYNTAX_ERROR."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise syntax_error(text[at:])
        found += _token(match, at)
        at = match.end()
    return [*found, Token("end", "", at)]


def _token(match: re.Match[str], at: int) -> list[Token]:
    word = match.group()
    match match.lastgroup:
        case "space":
            return []
        case "hex":
            digits = word[2:].rstrip("'")
            return [
                Token("value", bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits), at)
            ]
        case "number":
            number = (
                int(word)
                if word.isdigit()
                else float(word)
                if "e" in word.lower()
                else Decimal(word)
            )
            return [Token("value", number, at)]
        case "text":
            return [Token("value", _unescaped(word), at)]
        case "quoted":
            return [Token("name", word[1:-1].replace("``", "`"), at)]
    return [Token(str(match.lastgroup), word, at)]


def _negative(value: Any) -> Any:
    """Return the negative; a Decimal's own minus rounds to 28 digits."""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _unescaped(word: str) -> str:
    quote = word[0]
    return re.sub(
        r"\\(.)|" + quote * 2,
        lambda m: quote if m.group(1) is None else _ESCAPES.get(m.group(1), m.group(1)),
        word[1:-1],
        flags=re.S,
    )


class Parser:
    """Walk over the words of one statement."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._next = 0

    @property
    def here(self) -> Token:
        """Return the word that comes next."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Return the next word, and step over it."""
        token = self.here
        self._next += token.kind != "end"
        return token

    def is_word(self, *words: str) -> bool:
        """Return whether these words (upper case) or marks come next."""
        ahead = self._tokens[self._next : self._next + len(words)]
        return len(ahead) == len(words) and all(
            t.kind in ("word", "mark") and t.value.upper() == word for t, word in zip(ahead, words)
        )

    def accept(self, *words: str) -> bool:
        """Step over these words if they come next."""
        if not self.is_word(*words):
            return False
        self._next += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Step over these words; SQLError SYNTAX_ERROR if others come."""
        if not self.accept(*words):
            raise syntax_error(self._text[self.here.at :])

    def name(self) -> str:
        """Return a name, quoted or not."""
        token = self.take()
        if token.kind not in ("name", "word"):
            raise syntax_error(self._text[token.at :])
        return str(token.value)

    def names(self) -> list[str]:
        """Parse names with dots between them."""
        found = [self.name()]
        while self.accept("."):
            found.append(self.name())
        return found

    def end(self) -> None:
        """Check that the statement is over."""
        self.accept(";")
        if self.here.kind != "end":
            raise syntax_error(self._text[self.here.at :])

    def source(self, since: int) -> str:
        """Return the text from `since` to the next word, as it was written."""
        return self._text[since : self.here.at].strip()

    def expression(self) -> Node:
        """Return an expression, OR binding least."""
        left = self._and()
        while self.accept("OR") or self.accept("||"):
            left = ("or", left, self._and())
        return left

    def _and(self) -> Node:
        left = self._not()
        while self.accept("AND") or self.accept("&&"):
            left = ("and", left, self._not())
        return left

    def _not(self) -> Node:
        return ("not", self._not()) if self.accept("NOT") or self.accept("!") else self._compare()

    def _compare(self) -> Node:
        left = self._sum()
        while True:
            if self.here.kind == "mark" and self.here.value in _COMPARISONS:
                left = ("compare", self.take().value, left, self._sum())
            elif self.accept("IS"):
                wanted = not self.accept("NOT")
                self.expect("NULL")
                left = ("null", left, wanted)
            else:
                wanted = not self.accept("NOT")
                if self.accept("IN"):
                    self.expect("(")
                    left = ("in", left, self.list(), wanted)
                    self.expect(")")
                elif self.accept("BETWEEN"):
                    low = self._sum()
                    self.expect("AND")
                    both = (
                        "and",
                        ("compare", ">=", left, low),
                        ("compare", "<=", left, self._sum()),
                    )
                    left = both if wanted else ("not", both)
                elif self.accept("LIKE"):
                    left = ("like", left, self._sum(), wanted)
                elif wanted:
                    return left
                else:
                    raise syntax_error(self._text[self.here.at :])

    def _sum(self) -> Node:
        left = self._product()
        while self.here.kind == "mark" and self.here.value in "+-":
            left = ("arith", self.take().value, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._unary()
        while self.here.kind == "mark" and self.here.value in ("*", "/", "%"):
            left = ("arith", self.take().value, left, self._unary())
        return left

    def _unary(self) -> Node:
        if self.accept("-"):
            inner = self._unary()
            return (
                ("value", _negative(inner[1]))
                if inner[0] == "value"
                else ("arith", "-", ("value", 0), inner)
            )
        self.accept("+")
        return self._primary()

    def list(self) -> list[Node]:
        """Parse expressions with commas between them."""
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        return found

    def _primary(self) -> Node:
        token = self.take()
        if token.kind == "value":
            return ("value", token.value)
        if token.kind == "variable":
            return ("variable", token.value)
        if token.kind == "mark" and token.value == "(":
            items = self.list()
            self.expect(")")
            return items[0] if len(items) == 1 else ("row", items)
        if token.kind == "mark" and token.value == "*":
            return ("star",)
        if token.kind == "word":
            upper = token.value.upper()
            if upper in ("NULL", "TRUE", "FALSE"):
                return ("value", {"NULL": None, "TRUE": 1, "FALSE": 0}[upper])
            if upper.startswith("_") and self.here.kind == "value":  # _utf8mb4'…', _utf8mb4 x'…'
                value = self.take().value
                return ("value", value.decode() if isinstance(value, bytes) else value)
            if upper == "CAST" and self.accept("("):
                inner = self.expression()
                self.expect("AS")
                target = self.name().upper()
                sizes = []
                if self.accept("("):
                    sizes = self.list()
                    self.expect(")")
                while not self.accept(")"):
                    self.take()
                return ("call", f"CAST_{target}", [inner, *sizes])
            if upper == "CONVERT" and self.accept("("):
                inner = self.expression()
                self.expect("USING")
                charset = self.name().upper()
                self.expect(")")
                return ("call", f"CONVERT_{charset}", [inner])
            if self.accept("("):
                arguments = [] if self.is_word(")") else self.list()
                self.expect(")")
                return ("call", upper, arguments)
        if token.kind in ("word", "name"):
            name = token.value
            while self.accept("."):
                if self.accept("*"):
                    return ("star",)
                name = self.name()
            return ("column", name)
        raise syntax_error(self._text[token.at :])
