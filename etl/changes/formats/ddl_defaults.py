"""Take defaults out of TiDB's DDL text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.etl.changes.formats.ddl_text import is_blank, tokens

HIDDEN = "'***'"
_MIN_LOOKED_FOR_CHARS = 3
"""Shorter texts are in a statement anyway."""
_HEAD_WORDS = 3


def without_defaults(query: str, defaults: Iterable[str]) -> str:
    """Return a statement with `'***'` in place of literals behind DEFAULT.

    A statement in which a text of `defaults` is still found, as in a comment, is cut to its first
    words. The result says what the statement does, and is executed nowhere.
    """
    found = "".join(_hidden(tokens(query)))
    if any(len(text) >= _MIN_LOOKED_FOR_CHARS and text in found for text in defaults):
        words = [word for word in tokens(query) if not is_blank(word)][:_HEAD_WORDS]
        return " ".join([*words, "/* values of masked columns are left out */"])
    return found


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
