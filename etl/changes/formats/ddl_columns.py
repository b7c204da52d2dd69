"""Pair the columns of a table after a DDL with those of the table before it.

TiDB keeps a column's id when it is renamed, moved or changed without touching rows. A change that
rewrites rows (a reorganisation) leaves a column with a new id: under the old name, or under a new
one if the statement renames it too. Such a pair looks like a column dropped and another added; the
statement distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.etl.changes.formats.ddl_text import is_blank, tokens
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_BEFORE_NAME = {"COLUMN", "IF", "EXISTS"}


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that was there before a DDL and is there after it.

    Its name, type or place may be another one.
    """

    before: Table
    after: Table
    old: Column
    new: Column


def changed_columns(ddl: DdlJob) -> Iterator[ColumnChange]:
    """Yield every public column that is there before and after a DDL."""
    for old, after in ddl.table_pairs():
        by_id = {column.id: column for column in after.columns}
        for new_id, column in pair_columns(old, after, ddl).items():
            yield ColumnChange(old, after, column, by_id[new_id])


def added_columns(ddl: DdlJob) -> Iterator[tuple[Table, Column]]:
    """Yield every column that a DDL adds to an existing table, with the table as it is after."""
    for old, after in ddl.table_pairs():
        known = pair_columns(old, after, ddl)
        yield from (
            (after, column) for column in after.columns if column.public and column.id not in known
        )


def pair_columns(before: Table, after: Table, ddl: DdlJob) -> dict[int, Column]:
    """Return the column that each public column of `after`, by its id, was before.

    Columns that were added are missing.
    """
    old = {column.id: column for column in before.columns if column.public}
    new = {column.id: column for column in after.columns if column.public}
    pairs = {i: old[i] for i in new if i in old}
    gone = {folded(column.source_name): column for i, column in old.items() if i not in pairs}
    come = {folded(column.source_name): column for i, column in new.items() if i not in pairs}
    # a statement can't both drop a column and add one of its name
    for name in [name for name in come if name in gone]:
        pairs[come.pop(name).id] = gone.pop(name)
    if not gone or not come:
        return pairs
    if ddl.type == Action.MODIFY_COLUMN and len(gone) == len(come) == 1:
        (was,), (is_now,) = gone.values(), come.values()
        pairs[is_now.id] = was
        return pairs
    for was_name, name in _renamed_columns(ddl.query):
        if was_name in gone and name in come:
            pairs[come.pop(name).id] = gone.pop(was_name)
    return pairs


def _renamed_columns(statement: str) -> Iterator[tuple[str, str]]:
    """Yield (old, new) of each ``CHANGE [COLUMN] [IF EXISTS] old new``, in lower case.

    Double quotes may be around names as around strings: the caller knows which names there are.
    """
    words = [word for word in tokens(statement) if not is_blank(word)]
    for n, word in enumerate(words):
        if word.upper() != "CHANGE":
            continue
        n += 1
        while n < len(words) and words[n].upper() in _BEFORE_NAME:
            n += 1
        if n + 1 < len(words):
            yield _unquoted(words[n]), _unquoted(words[n + 1])


def _unquoted(word: str) -> str:
    quote = word[0]
    text = word[1:-1].replace(quote * 2, quote) if quote in '`"' and len(word) > 1 else word
    return folded(text)
