"""Take defaults out of TiDB's DDL text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.etl.changes.formats.ddl_text import is_blank, tokens

HIDDEN = "'***'"
_MIN_LOOKED_FOR_CHARS = 3
"""Shorter texts are in a statement anyway."""
_HEAD_WORDS = 3
_CUT = "/* values of masked columns are left out */"


def without_defaults(query: str, defaults: Iterable[str]) -> str:
    """Return a statement with `'***'` in place of literals behind DEFAULT.

    So are strings and comments in which a text of `defaults` is found. A statement that has one
    besides is cut to its first words, see `is_cut`. The result says what the statement does, and is
    executed nowhere.
    """
    looked_for = [text for text in defaults if len(text) >= _MIN_LOOKED_FOR_CHARS]
    shown = list(_hidden(tokens(query)))
    for n, word in enumerate(shown):
        if any(text in word for text in looked_for):
            shown[n] = {"'": HIDDEN, '"': HIDDEN, "/": "/* *** */", "-": ""}.get(word[0], word)
    found = "".join(shown)
    if any(text in found for text in looked_for):
        words = [word for word in tokens(query) if not is_blank(word)][:_HEAD_WORDS]
        return " ".join([*words, _CUT])
    return found


def is_cut(query: str) -> bool:
    """Return whether `without_defaults` has cut a statement: what it does isn't in its text."""
    return query.endswith(_CUT)


def _hidden(words: list[str]) -> Iterator[str]:
    depth = 0
    is_behind = False
    for word in words:
        if word.startswith("/*"):
            yield _inner(word)
        elif not is_behind:
            is_behind = word.upper() == "DEFAULT"
            yield word
        elif word == "(":
            depth += 1
            yield word
        elif word == ")" and depth:
            depth -= 1
            is_behind = depth > 0
            yield word
        elif word[0] in "'\"" or word[0].isdigit():
            yield HIDDEN
        elif is_blank(word) or word in "+-." or word[0] == "_" or word.lower() in ("x", "b", "n"):
            yield word
        else:
            is_behind = depth > 0
            yield word


def _inner(comment: str) -> str:
    if len(comment) < len("/**/") or not comment.startswith("/*"):
        return comment
    return "/*" + "".join(_hidden(tokens(comment[2:-2]))) + "*/"
