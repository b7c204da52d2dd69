r"""Match names by the patterns of filters and routes: drainer.toml's, and common wildcards.

    ~^log_\d+     a regular expression that may match anywhere in the name
    shop          the whole name
    shop_*        * any run of characters, ? any one, [a-f] one of a class
    log_.*        what is a regular expression stays one, against the whole name

Case never matters. TiDB Binlog takes every name without ``~`` for the regular expression
``^name$``. So is it here, but for ``*`` and ``?`` behind a plain character: to the original
``shop*`` is sho, shop, shopp; no user means that, here it is a wildcard.
"""

from __future__ import annotations

import functools
import re
import warnings

from sluice.errors import RequestError
from sluice.tidb.folded import folded

_POSIX = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "word": r"\w",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
    "blank": " \\t",
}
_PLAIN = re.compile(r"(?!~)((?:[^\\.^$*+?{}()\[\]|]|\$(?!\Z)|\\\W)+)\$?\Z")
"""Signs that mean themselves alone, also by a backslash before them; a ``$`` does, but at the end.
"""
_ESCAPED = re.compile(r"\\(\W)")
_LIKE_WILDCARD = re.compile(r"(?<![.(\])}\\*?+])[*?]")


class PatternError(RequestError, ValueError):
    """A pattern that can't be understood; the text has the reason and the position in it."""


def matches(pattern: str, name: str) -> bool:
    """Return whether `name` fits `pattern`. Raises PatternError."""
    return _compiled_pattern(pattern).search(name) is not None


def check(pattern: str) -> None:
    """Raise PatternError if there is something wrong with a pattern."""
    _compiled_pattern(pattern)


def plain_name(pattern: str) -> str | None:
    """Return the only name, in lower case, that fits `pattern`; None if more than one does."""
    plain = _PLAIN.match(pattern)
    return folded(_ESCAPED.sub(r"\1", plain[1])) if plain else None


def reads_otherwise(pattern: str) -> bool:
    """Return whether the original would take ``*`` or ``?`` for a repetition.

    It repeats the character before.
    """
    return (
        not pattern.startswith("~")
        and not pattern.startswith("(?")
        and _LIKE_WILDCARD.search(pattern) is not None
    )


@functools.lru_cache(maxsize=4096)
def _compiled_pattern(pattern: str) -> re.Pattern[str]:
    if not pattern or pattern == "~":
        raise PatternError("an empty pattern")
    if pattern.startswith("~"):
        expression, shift = _go_to_python_regex(pattern[1:]), 1
    else:
        expression, shift = f"^{_go_to_python_regex(_regex_body(pattern))}\\Z", -1
    try:
        with warnings.catch_warnings():
            # "[[": a bracket in a class, as Go has it
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(expression, re.IGNORECASE)
    except re.error as error:
        raise PatternError(f"{error.msg} at position {(error.pos or 0) + shift}") from None


def _go_to_python_regex(expression: str) -> str:
    """Translate a regular expression from Go's spelling into Python's."""
    for name, characters in _POSIX.items():
        expression = expression.replace(f"[:{name}:]", characters)
    return expression.replace(r"\z", r"\Z")


def _regex_body(pattern: str) -> str:
    """Return a pattern without ``~`` as the inside of a regular expression."""
    out: list[str] = []
    # what stands before: "" nothing or a plain character, "one" what can be repeated, "(" or
    # "repeat"
    before = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        size = 1
        kind = ""
        if char == "\\":
            if at + 1 == len(pattern):
                raise PatternError(f"a backslash with nothing behind it at position {at}")
            size, kind = 2, "one"
        elif char == "[":
            end = pattern.find("]", at + 2)
            while end > 0 and pattern.rfind("[:", at, end) > pattern.rfind(":]", at, end):
                end = pattern.find("]", end + 1)
            if end < 0:
                raise PatternError(f"unterminated character set at position {at}")
            size, kind = end + 1 - at, "one"
        elif char in ".)":
            kind = "one"
        elif char == "(":
            kind = "("
        elif char in "+}":
            kind = "repeat"
        elif char == "*" and before != "one":
            out.append(".*")
            at += 1
            before = ""
            continue
        elif char == "?" and before == "":
            out.append(".")
            at += 1
            continue
        elif char in "*?":
            kind = "repeat"
        text = pattern[at : at + size]
        if char == "$" and at + 1 < len(pattern):
            text = "\\$"
        out.append(text)
        before = kind
        at += size
    return "".join(out)
