"""DELETE statements by key, and what was asked of them, read back from their text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import (
    BYTEWISE_KINDS,
    bytes_of,
    invalid_utf8_mask,
    is_rounded,
    key_conditions,
    literal_column,
)
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.tidb.schema import Column, Table

_KEYS_A_STATEMENT = 1000
_MAX_SINGLE_STATEMENT_TERMS = 64
_STATEMENT_BYTES = 1 << 20
_DELETE_HEAD = re.compile(rb"DELETE FROM (`(?:[^`]|``)*`\.`(?:[^`]|``)*`) WHERE ")
_QUOTED = rb"'(?:[^']|'')*'|`(?:[^`]|``)*`"
_SEPARATOR = re.compile(_QUOTED + rb"|(\nOR |,\n)")
_LIST = re.compile(rb"(`(?:[^`]|``)*`) IN \(((?:" + _QUOTED + rb"|[^)'`])*)\)")
_LIMIT = re.compile(rb" LIMIT \d+\Z")


def delete_head(table: Table) -> bytes:
    """Return what a DELETE from `table` begins with."""
    return _delete_head(table.schema_name, table.name)


@functools.lru_cache(maxsize=4096)
def _delete_head(schema: str, table: str) -> bytes:
    return f"DELETE FROM {quote_name(schema)}.{quote_name(table)} WHERE ".encode()


def deletes_by_key(
    table: Table, key: Sequence[Column], arrays: Sequence[pa.Array], *, once: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield (keys, statement) for the rows with these keys, some hundred a statement.

    `once`: leave out keys that come again.
    """
    column = key[0]
    listed = (
        len(key) == 1
        and not is_rounded(column)
        and (column.kind not in BYTEWISE_KINDS or invalid_utf8_mask(arrays[0]) is None)
    )
    terms = literal_column(arrays[0], column) if listed else key_conditions(key, arrays)
    wanted = terms.to_pylist()
    wanted = list(dict.fromkeys(wanted)) if once else wanted
    if listed:
        yield from _listed_statements(table, column, wanted)
        return
    for group in _statement_groups(wanted):
        yield len(group), delete_head(table) + b"\nOR ".join(group)


def deletes_by_number(
    table: Table, column: Column, numbers: Iterable[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield the same for rows with these values of a key that is one whole number."""
    for group in _statement_groups([b"%d" % number for number in numbers]):
        yield (
            len(group),
            b"%s%s IN (%s)"
            % (delete_head(table), quote_name(column.name).encode(), b",\n".join(group)),
        )


def _listed_statements(
    table: Table, column: Column, terms: list[bytes]
) -> Iterator[tuple[int, bytes]]:
    for group in _statement_groups(terms):
        values = b" IN (" + b",\n".join(group) + b")"
        condition = quote_name(column.name).encode() + values
        # Through the index by the column's own collation; then byte for byte.
        yield (
            len(group),
            delete_head(table)
            + condition
            + (b" AND " + bytes_of(column) + values if column.kind in BYTEWISE_KINDS else b""),
        )


def counting_selects(statement: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, SELECT that counts its rows) for each row that a DELETE removes.

    The DELETE is one of this module or one by all values.
    """
    match = _DELETE_HEAD.match(statement)
    if match is None:
        return
    conditions = _LIMIT.sub(b"", statement[match.end() :])
    listed = _LIST.match(conditions)
    terms = (
        [listed[1] + b"=" + value for value in _split_terms(listed[2])]
        if listed
        else _split_terms(conditions)
    )
    for term in terms:
        yield term, b"SELECT COUNT(*) FROM " + match[1] + b" WHERE " + term


def _split_terms(text: bytes) -> list[bytes]:
    parts, start = [], 0
    for match in _SEPARATOR.finditer(text):
        if match[1] is not None:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _statement_groups(terms: list[bytes]) -> Iterator[list[bytes]]:
    if len(terms) <= _MAX_SINGLE_STATEMENT_TERMS and sum(map(len, terms)) <= _STATEMENT_BYTES:
        if terms:
            yield terms
        return
    group: list[bytes] = []
    size = 0
    for term in terms:
        if group and (len(group) == _KEYS_A_STATEMENT or size + len(term) > _STATEMENT_BYTES):
            yield group
            group, size = [], 0
        group.append(term)
        size += len(term) + 4
    if group:
        yield group
