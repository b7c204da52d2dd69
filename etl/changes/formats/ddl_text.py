"""Split TiDB's DDL text into tokens, and translate its character sets and collations.

TiDB renders statements in one normal form before they reach the binlog: names in backquotes,
strings in single quotes, its own syntax in ``/*T![feature] ... */`` comments, which others skip.
In that form a backslash is a character like any other. Text that TiDB can't render (of a session
with ANSI_QUOTES, or of TiDB before 5.0) comes as the user typed it. So nothing is executed because
of a text; what a statement does is known from the job.
"""

from __future__ import annotations

import re

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.sql_text import quote_name, quote_text
from sluice.tidb import column_types
from sluice.tidb.schema import Column, Table

_REST = r"""|/\*.*?\*/|--(?=\s|\Z)[^\n]*|\s+|[\w$\x80-\U0010ffff]+|."""
_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^']|'')*'|"(?:[^"]|"")*\"""" + _REST, re.DOTALL)
# What TiDB calls latin1, and before 5.0 ascii, is utf-8 that isn't checked: it takes any character
# and compares code points.
_CHARSET = {"latin1": "utf8mb4", "ascii": "utf8mb4"}
_COLLATION = {
    "latin1_bin": "utf8mb4_bin",
    "ascii_bin": "utf8mb4_bin",
    "latin1_nopad_bin": "utf8mb4_nopad_bin",
    "ascii_nopad_bin": "utf8mb4_nopad_bin",
}


def tokens(statement: str) -> list[str]:
    """Split SQL into names, strings, comments, white space, words and single characters.

    Joined they are the statement.
    """
    return _TOKEN.findall(statement)


def charset_name(charset: str) -> str:
    """Return the downstream's character set that holds what TiDB's `charset` does."""
    return _CHARSET.get(charset.lower(), charset)


def collation_name(collation: str, dialect: Dialect) -> str:
    """Return the downstream's name of a TiDB collation."""
    return dialect.collation(_COLLATION.get(collation.lower(), collation))


def element_type(column: Column) -> str:
    """Return ``ENUM('a','b')`` or ``SET(...)``, for a session without backslash escapes."""
    elements = ",".join(map(quote_text, column.elems))
    return f"{'ENUM' if column.tp == column_types.ENUM else 'SET'}({elements})"


def blank_ended_columns(table: Table) -> tuple[str, ...]:
    """Return name and type of each column with an element that ends with a blank."""
    return tuple(
        f"{quote_name(c.name)} {element_type(c)}" for c in table.stored_columns if c.has_blank_ends
    )


def is_blank(word: str) -> bool:
    """Return whether a token is white space or a comment."""
    return word.isspace() or word.startswith("/*") or (word.startswith("--") and len(word) > 1)
