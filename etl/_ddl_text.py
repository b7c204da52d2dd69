"""TiDB's DDL text made digestible for MariaDB and MySQL, token by token.

TiDB renders statements in one normal form before they reach the binlog: names in backquotes, strings in single quotes, its own
syntax in ``/*T![feature] ... */`` comments, which others skip. What differs beyond that: a character set without a collation means
another collation there, and a few words. Nothing here decides what a statement does; that is known from the job.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|/\*.*?\*/|--[^\n]*|\s+|[\w$\x80-\U0010ffff]+|.""", re.DOTALL
)
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
_MARIADB_COLLATION = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}


def tokens(statement: str) -> list[str]:
    """Names, strings, comments, runs of white space, words and single characters; joined they are the statement."""
    return _TOKEN.findall(statement)


def default_collation(charset: str) -> str:
    """The collation TiDB gives a character set when none is named; "" for a character set it doesn't have."""
    return _DEFAULT_COLLATION.get(charset.lower(), "")


def collation_name(collation: str, mariadb: bool) -> str:
    """TiDB's collation under the name the downstream has for it."""
    return _MARIADB_COLLATION.get(collation.lower(), collation) if mariadb else collation


def adapt(statement: str, mariadb: bool, table_options: str = "") -> str:
    """The statement with every character set given TiDB's collation, collations and a few words in the downstream's spelling.
    `table_options` go behind the column list of a CREATE TABLE that names no character set for the table."""
    words = tokens(statement.strip().rstrip(";"))
    significant = [i for i, word in enumerate(words) if not _blank(word)]
    upper = {i: words[i].upper() for i in significant}
    after = {i: significant[n + 1 : n + 5] for n, i in enumerate(significant)}
    additions: dict[int, str] = {}
    depth = 0
    list_end = -1
    table_charset = False
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
            if not (rest and upper[rest[0]] == "COLLATE"):
                collation = default_collation(words[charset_at].strip("'\"`"))
                if collation:
                    additions[charset_at] = f" COLLATE {collation_name(collation, mariadb)}"
        elif word == "COLLATE" and depth == 0:
            table_charset = True
        if word == "COLLATE" and following:
            at = following[1] if words[following[0]] == "=" and len(following) > 1 else following[0]
            words[at] = collation_name(words[at].strip("'\"`"), mariadb)
        elif mariadb and word in ("INVISIBLE", "VISIBLE") and words[i][0] != "`":
            words[i] = "IGNORED" if word == "INVISIBLE" else "NOT IGNORED"
        elif word in ("WITH", "WITHOUT") and following and upper[following[0]] == "VALIDATION":
            words[i] = words[following[0]] = ""
    if table_options and list_end >= 0 and not table_charset:
        additions[list_end] = f" {table_options}"
    return "".join(word + additions.get(i, "") for i, word in enumerate(words))


def exchanged_partition(statement: str) -> str:
    """The (quoted) partition of an ALTER TABLE ... EXCHANGE PARTITION. Raises ValueError if there is none."""
    words = [word for word in tokens(statement) if not _blank(word)]
    for first, second, name in zip(words, words[1:], words[2:]):
        if (first.upper(), second.upper()) == ("EXCHANGE", "PARTITION"):
            return name if name.startswith("`") else f"`{name}`"
    raise ValueError(f"no EXCHANGE PARTITION in {statement[:200]!r}")


def _blank(word: str) -> bool:
    return word.isspace() or word.startswith(("/*", "--"))


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
