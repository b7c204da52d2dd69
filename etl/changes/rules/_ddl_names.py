"""Replace the names of tables and databases in a DDL statement.

They are found by the words around them, token by token: what follows TABLE, VIEW, SEQUENCE,
REFERENCES, LIKE, RENAME TO, WITH TABLE, the ON of an index, and in the query of a view FROM and
JOIN. Strings, comments and column names stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.changes.formats.ddl_text import is_blank, tokens
from sluice.etl.changes.formats.sql_text import quote_name

Rename = Callable[[str, str], tuple[str, str]]
"""Maps a table's (schema, name) to its new ones."""

_OBJECT_KEYWORDS = {"TABLE", "TABLES", "VIEW", "SEQUENCE"}
_BEFORE_NAME = {"IF", "NOT", "EXISTS"}
_FROM_TERMINATORS = {
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "WINDOW",
    "FOR",
}
_NON_ALIAS_WORDS = _FROM_TERMINATORS | {
    "JOIN",
    "LEFT",
    "RIGHT",
    "INNER",
    "CROSS",
    "NATURAL",
    "STRAIGHT_JOIN",
    "ON",
    "USING",
    "USE",
    "FORCE",
    "IGNORE",
    "PARTITION",
    "WITH",
    "AS",
    "SET",
    "TABLESAMPLE",
}
# functions whose arguments have a FROM
_FUNCTIONS_WITH_FROM = {"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR"}


def rename_tables(statement: str, schema: str, rename: Rename) -> str:
    """Return the statement with every table's name replaced by its full new one.

    `schema`: where names without one belong.
    """
    return _NameRewriter(statement, schema, rename).text()


def rename_in_query(query: str, rename: Rename) -> str:
    """Return a view's query with every table's name replaced.

    In `query` every table has its full name.
    """
    return _NameRewriter(query, "", rename).query()


def rename_database(statement: str, name: str) -> str:
    """Return a CREATE, ALTER or DROP DATABASE with another name."""
    words = tokens(statement)
    at = [i for i, word in enumerate(words) if not is_blank(word)]
    for n, i in enumerate(at):
        if words[i].upper() in ("DATABASE", "SCHEMA"):
            rest = [j for j in at[n + 1 :] if words[j].upper() not in _BEFORE_NAME]
            if rest and _is_name(words[rest[0]]):
                words[rest[0]] = quote_name(name)
            break
    return "".join(words)


class _NameRewriter:
    def __init__(self, statement: str, schema: str, rename: Rename) -> None:
        self._words = tokens(statement)
        self._at = [i for i, word in enumerate(self._words) if not is_blank(word)]
        self._schema = schema
        self._rename = rename
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def text(self) -> str:
        if (
            self._word(0) in ("CREATE", "ALTER")
            and "VIEW" in [self._word(n) for n in range(1, 24)]
            and self._word(1) != "TABLE"
        ):
            self._view()
        elif self._word(0) == "RENAME" or (self._word(0) == "DROP" and self._word(1) != "INDEX"):
            self._list_after_object()
        else:
            self._statement()
        return "".join(self._words)

    def _word(self, n: int) -> str:
        """Return the n-th word in capitals; "" for a quoted one and beyond the end."""
        word = self._raw(n)
        return "" if word[:1] in "`'\"" else word.upper()

    def _raw(self, n: int) -> str:
        return self._words[self._at[n]] if 0 <= n < len(self._at) else ""

    def _statement(self) -> None:
        """Find the name in a statement about one table: CREATE, ALTER, TRUNCATE and others."""
        depth, target_seen = 0, False
        n = 0
        while n < len(self._at):
            word, before = self._word(n), self._word(n - 1)
            if word == "(":
                depth += 1
            elif word == ")":
                depth -= 1
            name_at = -1
            if not target_seen and depth == 0:
                if word in _OBJECT_KEYWORDS or (
                    word == "ON" and "INDEX" in (self._word(1), self._word(2))
                ):
                    name_at = self._skip(n + 1)
                elif word == "TRUNCATE" and self._word(n + 1) != "TABLE":
                    name_at = n + 1
                target_seen = name_at > 0
            elif (
                word == "REFERENCES"
                or (word == "TABLE" and before == "WITH")
                or (
                    word == "LIKE"
                    and (
                        depth == 0
                        or (before == "(" and depth == 1 and self._raw(n + 2) in (")", "."))
                    )
                )
            ):
                name_at = n + 1
            elif (
                word == "RENAME"
                and depth == 0
                and self._word(n + 1) not in ("COLUMN", "INDEX", "KEY")
            ):
                name_at = n + 2 if self._word(n + 1) in ("TO", "AS") else n + 1
            elif (word == "(" and before in ("NEXTVAL", "LASTVAL")) or (
                word == "FOR" and before == "VALUE"
            ):
                name_at = n + 1
            n = self._replace(name_at) if 0 < name_at < len(self._at) else n + 1

    def _list_after_object(self) -> None:
        """Find the names in a list: RENAME TABLE a TO b, c TO d; DROP TABLE a, b."""
        n = next(
            (i for i in range(len(self._at)) if self._word(i) in _OBJECT_KEYWORDS), len(self._at)
        )
        n = self._skip(n + 1)
        while n < len(self._at):
            n = self._replace(n)
            if self._word(n) not in ("TO", ","):
                return
            n += 1

    def query(self) -> str:
        self._query(0)
        return "".join(self._words)

    def _view(self) -> None:
        n = next(i for i in range(1, len(self._at)) if self._word(i) == "VIEW")
        self._query(self._replace(self._skip(n + 1)))

    def _query(self, n: int) -> None:
        # Where a table is named, its old name becomes an alias, so that columns qualified with it
        # go on meaning the same.
        froms: list[bool] = [False]
        opened = [0]
        while n < len(self._at):
            word = self._word(n)
            if word == "(":
                froms.append(froms[-1] and self._word(n - 1) in ("FROM", "JOIN", ",", "("))
                opened.append(n)
            elif word == ")" and len(froms) > 1:
                froms.pop()
                opened.pop()
            elif word == "SELECT" or word in _FROM_TERMINATORS:
                froms[-1] = False
            elif word in ("FROM", "JOIN", "STRAIGHT_JOIN"):
                if (
                    word == "FROM"
                    and self._word(opened[-1] - 1) in _FUNCTIONS_WITH_FROM
                    and "SELECT" not in self._word_texts(opened[-1], n)
                ):
                    n += 1
                    continue
                froms[-1] = True
            starts = word in ("FROM", "JOIN", "STRAIGHT_JOIN") or (froms[-1] and word in (",", "("))
            while starts and self._raw(n + 1) == "(" and self._word(n + 2) != "SELECT":
                froms.append(True)
                opened.append(n + 1)
                n += 1
            if (
                starts
                and _is_name(self._raw(n + 1))
                and self._word(n + 1) not in ("SELECT", "DUAL", "LATERAL")
            ):
                n = self._replace(n + 1, alias=True)
                continue
            n += 1
        self._drop_schemas()

    def _word_texts(self, first: int, end: int) -> list[str]:
        return [self._word(n) for n in range(first, end)]

    def _drop_schemas(self) -> None:
        """Shorten `schema`.`table`.`column` of an aliased table to `table`.`column`."""
        for n in range(len(self._at) - 4):
            if (
                self._raw(n + 1) == "."
                and self._raw(n + 3) == "."
                and (_unquoted(self._raw(n)), _unquoted(self._raw(n + 2))) in self._known
            ):
                self._words[self._at[n]] = self._words[self._at[n + 1]] = ""

    def _skip(self, n: int) -> int:
        while self._word(n) in _BEFORE_NAME:
            n += 1
        return n

    def _replace(self, n: int, *, alias: bool = False) -> int:
        """Replace the name that begins at word n; the number of the word behind it."""
        if not _is_name(self._raw(n)):
            return n + 1
        end = n + 1
        schema, name = self._schema, _unquoted(self._raw(n))
        if self._raw(n + 1) == "." and _is_name(self._raw(n + 2)):
            end, schema, name = n + 3, name, _unquoted(self._raw(n + 2))
        target = self._rename(schema, name)
        self._words[self._at[n]] = f"{quote_name(target[0])}.{quote_name(target[1])}"
        for i in range(self._at[n] + 1, self._at[end - 1] + 1):
            self._words[i] = ""
        if alias:
            self._known[(schema, name)] = target
            has_alias = self._word(end) == "AS" or (
                _is_name(self._raw(end)) and self._word(end) not in _NON_ALIAS_WORDS
            )
            if not has_alias and name != target[1]:
                self._words[self._at[end - 1]] += f" AS {quote_name(name)}"
        return end


def _is_name(word: str) -> bool:
    return word.startswith("`") or (
        bool(word) and (word[0].isalnum() or word[0] in "_$" or word[0] > "\x7f")
    )


def _unquoted(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word
