"""Split the SQL that operators give in place of a DDL; it is never changed."""

from __future__ import annotations

import re

# As a client's session reads it: backslashes escape. Names, strings, comments, white space, words,
# single characters.
_TOKEN = re.compile(
    r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|/\*.*?\*/|--(?=\s|\Z)[^\n]*|\#[^\n]*|\s+|\w+|.""",
    re.DOTALL,
)
_ROWS_ONLY = {"INSERT", "UPDATE", "DELETE", "REPLACE", "SELECT", "WITH", "SET", "DO", "VALUES"}


def split_statements(text: str) -> list[str]:
    """Return the statements of a text, separated by semicolons outside of quotes and comments.

    DELIMITER is not understood.
    """
    found: list[str] = []
    words: list[str] = []
    for word in [*_TOKEN.findall(text), ";"]:
        if word != ";":
            words.append(word)
            continue
        statement = "".join(words).strip()
        if any(not _is_blank(each) for each in words):
            found.append(statement)
        words = []
    return found


def changes_rows_only(statement: str) -> bool:
    """Return whether a statement leaves the transaction open that it runs in.

    Known for the usual ones, False when in doubt.
    """
    first = next((word for word in _TOKEN.findall(statement) if not _is_blank(word)), "")
    return first.upper() in _ROWS_ONLY


def _is_blank(word: str) -> bool:
    return (
        word.isspace()
        or word.startswith(("--", "#"))
        or (word.startswith("/*") and not word.startswith(("/*!", "/*M!", "/*T!")))
    )
