"""TiDB's DDL text made digestible for MariaDB and MySQL, token by token.

TiDB renders statements in one normal form before they reach the binlog: names in backquotes, strings in single quotes, its own
syntax in ``/*T![feature] ... */`` comments, which others skip. In that form a backslash is a character like any other: the text is
for a session with NO_BACKSLASH_ESCAPES. (TiDB before 5.0 sends what the user typed; `normal_strings` brings that into the form.)
What differs beyond that: a character set without a collation means another collation there, storage engines, and a few words.
Nothing here decides what a statement does; that is known from the job.
"""

from __future__ import annotations

import re

from etl.dialect import Dialect

_REST = r"""|/\*.*?\*/|--(?=\s|\Z)[^\n]*|\s+|[\w$\x80-\U0010ffff]+|."""
_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^']|'')*'|"(?:[^"]|"")*\"""" + _REST, re.DOTALL)
_ESCAPED_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\"""" + _REST, re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_DEFAULT_COLLATION = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
    "gb18030": "gb18030_chinese_ci",
    "binary": "binary",
}
# What TiDB calls latin1, and before 5.0 ascii, is utf-8 that nobody checks: it takes any character and compares code points.
_CHARSET = {"latin1": "utf8mb4", "ascii": "utf8mb4"}
_COLLATION = {"latin1_bin": "utf8mb4_bin", "ascii_bin": "utf8mb4_bin"}
_INTRODUCERS = {"_LATIN1", "_GBK", "_GB18030", "_ASCII", "_UTF8", "_UTF8MB3"}  # the bytes behind them are utf-8 all the same
_ACTS_BY_ITSELF = re.compile(r"/\*T!\[(ttl|placement)\]", re.IGNORECASE)
_HINTS = {"ALGORITHM", "LOCK"}


def tokens(statement: str) -> list[str]:
    """Names, strings, comments, runs of white space, words and single characters; joined they are the statement."""
    return _TOKEN.findall(statement)


def normal_strings(statement: str) -> str:
    """A statement whose strings have backslash escapes, or double quotes, with strings as TiDB's normal form has them."""
    return "".join(_normal_string(word) if word[0] in "'\"" and len(word) > 1 else word for word in _ESCAPED_TOKEN.findall(statement))


def _normal_string(word: str) -> str:
    quote = word[0]
    text = re.sub(
        rf"\\(.)|{quote}{quote}", lambda m: quote if m[1] is None else _ESCAPES.get(m[1], m[1]), word[1:-1], flags=re.DOTALL
    )
    return "'" + text.replace("'", "''") + "'"


def default_collation(charset: str) -> str:
    """The collation TiDB gives a character set when none is named; "" for a character set it doesn't have."""
    return _DEFAULT_COLLATION.get(charset.lower(), "")


def charset_name(charset: str) -> str:
    """The downstream's character set that holds what TiDB's `charset` does."""
    return _CHARSET.get(charset.lower(), charset)


def collation_name(collation: str, dialect: Dialect) -> str:
    """TiDB's collation under the name the downstream has for it."""
    return dialect.collation(_COLLATION.get(collation.lower(), collation))


def adapt(statement: str, dialect: Dialect, table_options: str = "", target: str = "") -> str:
    """The statement with every character set given TiDB's collation, tables in InnoDB, collations and a few words in the
    downstream's spelling. `table_options` go behind the column list of a CREATE TABLE that names no character set for the table.
    `target`: the quoted full name of the table that is created or altered, in place of the one in the text, which may have other
    capitals and no schema."""
    words = tokens(statement.strip().rstrip(";"))
    if dialect.runs_tidb_comments:
        words = ["" if _ACTS_BY_ITSELF.match(word) else word for word in words]
    significant = [i for i, word in enumerate(words) if not _blank(word)]
    upper = {i: words[i].upper() for i in significant}
    after = {i: significant[n + 1 : n + 5] for n, i in enumerate(significant)}
    additions: dict[int, str] = {}
    depth = 0
    list_end = -1
    table_charset = False
    about_table = _target_at(significant, upper)
    for i in significant:
        word = upper[i]
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
            if depth == 0 and list_end < 0:
                list_end = i
        following = after[i]
        charset_at = _charset_at(word, following, upper)
        if charset_at is not None and depth <= 1:
            table_charset = table_charset or depth == 0
            rest = after[charset_at]
            charset = words[charset_at].strip("'\"`")
            if not (rest and upper[rest[0]] == "COLLATE"):
                collation = default_collation(charset)
                if collation:
                    additions[charset_at] = f" COLLATE {collation_name(collation, dialect)}"
            if charset_name(charset) != charset:
                words[charset_at] = charset_name(charset)
        elif word == "COLLATE" and depth == 0:
            table_charset = True
        if word == "COLLATE" and following:
            at = following[1] if words[following[0]] == "=" and len(following) > 1 else following[0]
            words[at] = collation_name(words[at].strip("'\"`"), dialect)
        elif word in ("INVISIBLE", "VISIBLE") and words[i][0] != "`":
            words[i] = dialect.index_visibility[word == "INVISIBLE"]
        elif word in ("WITH", "WITHOUT") and following and upper[following[0]] == "VALIDATION":
            words[i] = words[following[0]] = ""
        elif word in _INTRODUCERS and i + 1 < len(words) and words[i + 1].startswith("'"):
            words[i] = "_UTF8MB4"
        elif about_table is not None and word == "ENGINE" and len(following) > 1 and words[following[0]] == "=":
            words[following[1]] = "InnoDB"
        elif about_table is not None and depth == 0 and word in _HINTS:
            _leave_out(words, significant, i)
    if table_options and list_end >= 0 and not table_charset:
        additions[list_end] = f" {table_options}"
    if target and about_table is not None:
        rest = after[about_table]
        if len(rest) > 1 and words[rest[0]] == ".":
            words[rest[0]] = words[rest[1]] = ""
        words[about_table] = target
    return "".join(word + additions.get(i, "") for i, word in enumerate(words))


def exchanged_partition(statement: str) -> str:
    """The (quoted) partition of an ALTER TABLE ... EXCHANGE PARTITION. Raises ValueError if there is none."""
    words = [word for word in tokens(statement) if not _blank(word)]
    for first, second, name in zip(words, words[1:], words[2:]):
        if (first.upper(), second.upper()) == ("EXCHANGE", "PARTITION"):
            return name if name.startswith("`") else f"`{name}`"
    raise ValueError(f"no EXCHANGE PARTITION in {statement[:200]!r}")


def _blank(word: str) -> bool:
    return word.isspace() or word.startswith("/*") or (word.startswith("--") and len(word) > 1)


def _target_at(significant: list[int], upper: dict[int, str]) -> int | None:
    """Index of the (first part of the) name of the table that a CREATE TABLE, ALTER TABLE, CREATE INDEX or DROP INDEX is about."""
    said = [upper[i] for i in significant[:10]]
    if not said or said[0] not in ("CREATE", "ALTER", "DROP"):
        return None
    if "TABLE" in said[1:4] and said[0] != "DROP":
        at = said.index("TABLE") + 1
        if said[at : at + 3] == ["IF", "NOT", "EXISTS"]:
            at += 3
    elif "INDEX" in said[1:3]:
        if "ON" not in said:
            return None
        at = said.index("ON") + 1
    else:
        return None
    return significant[at] if at < len(significant) else None


def _leave_out(words: list[str], significant: list[int], i: int) -> None:
    """Blank ``ALGORITHM [=] x`` or ``LOCK [=] x`` with the comma in front of it, or behind it."""
    n = significant.index(i)
    if n + 1 >= len(significant):
        return
    last = n + (2 if words[significant[n + 1]] == "=" else 1)
    if last >= len(significant):
        return
    if words[significant[n - 1]] == ",":
        n -= 1
    elif last + 1 < len(significant) and words[significant[last + 1]] == ",":
        last += 1
    for at in significant[n : last + 1]:
        words[at] = ""


def _charset_at(word: str, following: list[int], upper: dict[int, str]) -> int | None:
    """Index of the character set's name if a CHARACTER SET or CHARSET clause begins here."""
    if word == "CHARSET":
        rest = following
    elif word in ("CHARACTER", "CHAR") and following and upper[following[0]] == "SET":
        rest = following[1:]
    else:
        return None
    if rest and upper[rest[0]] == "=":
        rest = rest[1:]
    return rest[0] if rest else None
