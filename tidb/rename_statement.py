"""Find the schemas from and to which a RENAME TABLE statement moves each table.

TiDB's finished jobs have them only in their text.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|/\*.*?\*/|--[^\n]*|\#[^\n]*|\s+|([\w$\x80-\U0010ffff]+)|(.)""",
    re.DOTALL,
)


def parse_renames(query: str) -> list[tuple[str | None, str | None]]:
    """Return (old schema, new schema) of each pair of a RENAME TABLE statement.

    None where the name has none. There are no strings in it, so double quotes are around names,
    whatever the session's mode was.
    """
    words: list[tuple[str, bool]] = []  # a word, and whether it is a name for certain
    for tick, quoted, word, sign in _TOKEN.findall(query):
        if tick or quoted:
            words.append((tick.replace("``", "`") if tick else quoted.replace('""', '"'), True))
        elif word or sign:
            words.append((word or sign, False))
    pairs, at = [], 2  # RENAME TABLE
    while at < len(words) and words[at] != (";", False):
        old, at = _schema_of(words, at)
        new, at = _schema_of(words, at + 1)
        pairs.append((old, new))
        at += 1
    return pairs


def _schema_of(words: list[tuple[str, bool]], at: int) -> tuple[str | None, int]:
    """Return the schema of the name at a place, and the place behind it."""
    if at + 2 < len(words) and words[at + 1] == (".", False):
        return words[at][0], at + 3
    return None, at + 1
