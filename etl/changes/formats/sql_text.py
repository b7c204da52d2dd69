"""Write SQL text from identifiers and values; `formats.sql_columns` does from Arrow columns.

Nothing reaches a statement unquoted, and nothing is quoted anywhere else.

Literals mean the same in every session, whatever its sql_mode makes of backslashes and double
quotes: text with a backslash in it is written in hexadecimal digits, in other text quotes are
doubled. `tests/etl/downstream/test_literals.py` looks for other ways.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.tidb.schema import Column, Table

_ESCAPED_CHARACTERS = re.compile(r"[\\\0]")  # read in different ways, or by some parsers only
_PLACEHOLDER = re.compile(r"`(?:[^`]|``)*`|%s")
_QUOTED = re.compile(r"""`(?:[^`]|``)*`|'(?:[^']|'')*'|"(?:[^"]|"")*["]""")


def quote_name(name: str) -> str:
    """Quote a name as an identifier; backquotes inside are doubled."""
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Return a string literal for a session without backslash escapes."""
    return "'" + text.replace("'", "''") + "'"


def double_backslashes(statement: str) -> str:
    """Return a statement for a session without backslash escapes as one for any other session."""
    if "\\" not in statement:
        return statement
    return _QUOTED.sub(
        lambda found: found[0].replace("\\", "\\\\") if found[0][0] != "`" else found[0], statement
    )


def quote_table(table: Table) -> str:
    """Return the table's full name, quoted."""
    return f"{quote_name(table.schema_name)}.{quote_name(table.name)}"


def columns_text(columns: Sequence[Column]) -> str:
    """Return the columns' names, quoted, separated by commas."""
    return ", ".join(quote_name(column.name) for column in columns)


def literal(value: object) -> str:
    """Write None, a bool, int, float, Decimal, str or bytes as a literal.

    Raises ValueError for what SQL has no literal for.
    """
    match value:
        case None:
            return "NULL"
        case bool() | int():
            return str(int(value))
        case float() if math.isfinite(value):
            text = repr(value)
            return text if "e" in text else f"{text}e0"
        case decimal.Decimal() if value.is_finite():
            return f"{value:f}"
        case str() if _ESCAPED_CHARACTERS.search(value):
            return f"_utf8mb4 x'{value.encode().hex()}'"
        case str():
            value.encode()  # raises for half a surrogate pair
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"x'{value.hex()}'"
    raise ValueError(f"there is no SQL literal for {value!r}")


def fill_placeholders(statement: str, args: Sequence[object]) -> str:
    """Fill each ``%s`` of a statement with a literal, but those in quoted names.

    Raises ValueError if there are not as many.
    """
    values = iter(args)
    try:
        text = _PLACEHOLDER.sub(
            lambda match: literal(next(values)) if match[0] == "%s" else match[0], statement
        )
    except StopIteration:
        raise ValueError(f"more places than the {len(args)} values: {statement[:200]}") from None
    if next(values, values) is not values:
        raise ValueError(f"fewer places than the {len(args)} values: {statement[:200]}")
    return text
