"""Check a condition that people wrote, before it becomes a part of a statement.

TiDB decides whether it can be read; here is refused what would not mean the same rows each time it
is evaluated, and what would end the condition. It stands in parentheses in the statement.
"""

from __future__ import annotations

from itertools import pairwise

from sluice.etl.changes.formats.ddl_text import is_blank, tokens
from sluice.etl.copy.errors import BackfillError

_NONDETERMINISTIC_WORDS = frozenset(
    {
        "CURRENT_DATE",
        "CURRENT_ROLE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
        "CURRENT_USER",
        "LOCALTIME",
        "LOCALTIMESTAMP",
        "UTC_DATE",
        "UTC_TIME",
        "UTC_TIMESTAMP",
    }
)
"""Words that need no parentheses."""
_FORBIDDEN_FUNCTIONS = frozenset(
    {
        "BENCHMARK",
        "CONNECTION_ID",
        "CURDATE",
        "CURTIME",
        "DATABASE",
        "FOUND_ROWS",
        "GET_LOCK",
        "IS_FREE_LOCK",
        "IS_USED_LOCK",
        "LASTVAL",
        "LAST_INSERT_ID",
        "LOAD_FILE",
        "NEXTVAL",
        "NOW",
        "RAND",
        "RANDOM_BYTES",
        "RELEASE_ALL_LOCKS",
        "RELEASE_LOCK",
        "ROW_COUNT",
        "SCHEMA",
        "SESSION_USER",
        "SETVAL",
        "SLEEP",
        "SYSDATE",
        "SYSTEM_USER",
        "TIDB_BOUNDED_STALENESS",
        "TIDB_CURRENT_TSO",
        "USER",
        "UUID",
        "UUID_SHORT",
        "VERSION",
    }
)
"""Functions that don't give the same for the same row, or do something."""
_SUBQUERY_WORDS = frozenset({"EXISTS", "SELECT", "TABLE", "VALUES", "WITH"})


def check_condition(text: str) -> None:
    """Raise BackfillError, which names the word, unless the condition is one of a row alone."""
    words = [word for word in tokens(text) if not word.isspace()]
    if not words:
        raise BackfillError("--where: an empty condition")
    depth = 0
    for word, behind in pairwise([*words, ""]):
        depth += (word == "(") - (word == ")")
        if depth < 0:
            raise BackfillError("--where: a parenthesis is closed that was not opened")
        if why := _why_forbidden(word, behind):
            raise BackfillError(f"--where: {why}")
    if depth:
        raise BackfillError("--where: a parenthesis is not closed")


def _why_forbidden(word: str, behind: str) -> str:
    """Return why a word, with what comes behind it, can't be; "" if it can."""
    if word[0] in "'\"`" and len(word) > 1:
        return (
            "a backslash in quotes is read in different ways: write x'...' with the text's bytes"
            if ("\\" in word)
            else ""
        )
    name = word.upper()
    if is_blank(word) or word == "#":
        return f"{word[:20]}: no comments, please"
    if word in (";", "\\", "'", '"', "`"):
        return f"{word} ends the condition, or isn't closed"
    if word == "@":
        return "variables (@) mean something else in each session"
    if name in _SUBQUERY_WORDS:
        return (
            f"{name}: a subquery is about more than a row; write the keys out, or copy by"
            " --from-key and --to-key"
        )
    if name in _NONDETERMINISTIC_WORDS or (name in _FORBIDDEN_FUNCTIONS and behind == "("):
        return f"{name} means something else each time: write a constant"
    if name == "UNIX_TIMESTAMP" and behind == "(":
        return f"{name} is the time now, or depends on the session's time zone: write a constant"
    return ""
