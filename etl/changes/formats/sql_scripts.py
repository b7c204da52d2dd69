"""Write SQL scripts (INSERT statements, comments), and split those that operators give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import join, literal_column
from sluice.etl.changes.formats.sql_text import columns_text, quote_table
from sluice.tidb.schema import Column, Table

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


_ROWS_A_STATEMENT = 500
_STATEMENT_BYTES = 1 << 20


def inserts(
    table: Table, columns: Sequence[Column], arrays: Sequence[pa.Array]
) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, statement), some hundred rows a statement.

    `arrays`: values as `literal_column` wants them for these columns; at least one.
    """
    if not len(arrays[0]):
        return
    begin = f"INSERT INTO {quote_table(table)} ({columns_text(columns)}) VALUES\n".encode()
    literals = [
        literal_column(array, column) for array, column in zip(arrays, columns, strict=True)
    ]
    rows = join(b"(", join(*literals, separator=b", "), b")").to_pylist()
    for group in grouped_rows(rows):
        yield len(group), begin + b",\n".join(group)


def grouped_rows(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group the texts, as many as one statement may have."""
    group: list[bytes] = []
    size = 0
    for text in texts:
        if group and (len(group) == _ROWS_A_STATEMENT or size + len(text) > _STATEMENT_BYTES):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group


def printable_ascii(text: str) -> str:
    """Return text as one line of printable ASCII."""
    return re.sub(r"[^ -~]", lambda match: ascii(match[0])[1:-1], text)
