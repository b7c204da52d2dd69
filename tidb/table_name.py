"""Names of tables: a pair of schema and table, and the one text that stands for it.

A schema or a table may hold a dot, so `schema.table` alone is ambiguous. A part that holds a dot or
begins with a backquote is written in backquotes, as in SQL: `` `my.db`.orders ``. Two pairs never
have the same text, and `parse` reads it back.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple, Self, TypeVar

from sluice.errors import RequestError

__all__ = [
    "TableName",
    "TableNameError",
    "abbreviate",
    "argument",
    "exactly",
    "first_of",
    "fits",
    "full_name",
    "names_table",
    "schema_fits",
    "suggestion",
]

_PART = r"`(?:[^`]|``)+`|[^`.][^.]*"
_PAIR = re.compile(rf"({_PART})\.({_PART})", re.DOTALL)
_MAX_SUGGESTIONS = 3
_EXACTLY = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
T = TypeVar("T")


class TableNameError(RequestError, ValueError):
    """A text names no table."""

    hint = (
        "write SCHEMA.TABLE, a part that holds a dot in backquotes and all in single quotes:"
        " '`my.db`.orders'"
    )


class TableName(NamedTuple):
    """A table's name. `str()` gives its text, `parse` is the inverse."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a table's text; quotes that aren't needed are accepted. Raises TableNameError."""
        if "`" not in text and text.count(".") == 1:  # nearly all names, at a quarter of the time
            schema, _, table = text.partition(".")
            if schema and table:
                return cls(schema, table)
        match = _PAIR.fullmatch(text)
        if match is None:
            raise TableNameError(
                f"{text!r} names no table: a schema, a dot and a table are expected"
            )
        return cls(*map(_bare, match.groups()))

    def __str__(self) -> str:
        return full_name(self.schema, self.table)


def names_table(text: str) -> bool:
    """Return whether the text names a table."""
    return _PAIR.fullmatch(text) is not None


def full_name(schema: str, table: str) -> str:
    """Return a table's text: `schema.table`, with a part in backquotes where it must be."""
    return f"{_spelled(schema)}.{_spelled(table)}"


def fits(name: str, glob: str) -> bool:
    """Return whether a table's text fits a glob (`*`, `?`, `[…]`) or is the glob itself, in case.

    A glob with a dot is two, of the schema and of the table. One without, such as `*` or `shop*`,
    is of the whole text.
    """
    parts, globs = _PAIR.fullmatch(name), _PAIR.fullmatch(glob)
    if parts is None or globs is None:
        return name == glob or fnmatchcase(name, glob)
    return name == glob or all(
        fnmatchcase(_bare(part), _bare(one))
        for part, one in zip(parts.groups(), globs.groups(), strict=True)
    )


def schema_fits(schema: str, glob: str) -> bool:
    """Return whether a table of this schema could fit the glob."""
    globs = _PAIR.fullmatch(glob)
    if globs is not None:
        return fnmatchcase(schema, _bare(globs[1]))
    begin, star, _ = glob.partition("*")
    return (
        fnmatchcase(schema, begin + star) if star else fnmatchcase(schema, glob.partition(".")[0])
    )


def suggestion(glob: str, known: Iterable[str]) -> str:
    """Return `; did you mean shop.orders?` for a name that nothing fits; "" if nothing is alike.

    `known`: the texts of the tables that there are.
    """
    by_folded = {name.casefold(): name for name in sorted(known)}
    bare = {name.partition(".")[2]: name for name in by_folded}
    alike = get_close_matches(glob.casefold(), by_folded, _MAX_SUGGESTIONS, 0.8)
    found = [by_folded[name] for name in alike]
    if not found and glob.casefold() in bare:  # its database was left out
        found = [by_folded[bare[glob.casefold()]]]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def exactly(name: str) -> str:
    """Return the glob that only this table's text fits."""
    return name.translate(_EXACTLY)


def argument(name: str) -> str:
    """Return a table's text as the argument `--table` of a command that is pasted into a shell."""
    return shlex.quote(exactly(name))


def first_of(items: Iterable[T], limit: int, kind: str = "") -> list[T | str]:
    """Return the first `limit` of the items, and if there are others, their number behind them.

    It is `and 3 more`, or with a `kind` such as "tables" `and 3 more tables`.
    """
    found: list[T | str] = list(items)
    if len(found) <= limit:
        return found
    return [*found[:limit], f"and {len(found) - limit:,} more {kind}".rstrip()]


def abbreviate(
    names: Iterable[str], limit: int = 10, *, kind: str = "", separator: str = ", "
) -> str:
    """Return the first `limit` of the names, and the number of the others: `a, b and 3 more`."""
    found = list(names)
    if len(found) <= limit or separator != ", ":
        return separator.join(first_of(found, limit, kind))
    *shown, others = first_of(found, limit, kind)
    return f"{', '.join(shown)} {others}"


def _spelled(part: str) -> str:
    return "`" + part.replace("`", "``") + "`" if "." in part or part.startswith("`") else part


def _bare(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
