"""The table that several sources share, behind a DDL of one of them: the union of their columns.

A source brings a DDL before the others do, and some may never. So a column that one drops or
renames stays for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.errors import Signal
from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.tidb.column_types import FLAG_NOT_NULL
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

__all__ = ["SourceUnion", "UnionError", "union_behind"]


class UnionError(Signal):
    """A DDL of one source after which the rows of the others don't fit; its text says why."""


@dataclass(frozen=True, slots=True)
class SourceUnion:
    """The shared table behind a DDL.

    `stays`: names of columns that the source doesn't have any more; `renamed`: (new, old) names of
    columns that become two.
    """

    table: Table
    stays: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def union_behind(ddl: DdlJob, old: Table, table: Table, *, by_source: bool) -> SourceUnion:
    """Return the shared table behind a DDL that makes one of its sources `table` of `old`.

    `by_source`: a column tells the rows of sources apart, so a renamed column can be copied for
    those of one. Raises UnionError.
    """
    pairs = pair_columns(old, table, ddl)
    new_ids = {column.id: column for column in table.columns}
    renamed = {
        new_id: was
        for new_id, was in pairs.items()
        if by_source and folded(new_ids[new_id].name) != folded(was.name)
    }
    for new_id, was in renamed.items():
        _check_rename(table, was, new_ids[new_id])
    kept = {was.id for new_id, was in pairs.items() if new_id not in renamed}
    stay = [
        column
        for column in old.columns
        if column.public and not column.hidden and not column.generated and column.id not in kept
    ]
    if not stay:
        return SourceUnion(table)
    # another id: for those that execute the DDL it is a column that is added
    own = (
        replace(_nullable(column), id=-column.id) if column.id in renamed else column
        for column in table.columns
    )
    behind = (
        replace(_nullable(column), offset=len(table.columns) + n, default=None)
        for n, column in enumerate(stay)
    )
    return SourceUnion(
        replace(table, columns=(*own, *behind)),
        tuple(column.name for column in stay),
        tuple((new_ids[new_id].name, was.name) for new_id, was in renamed.items()),
    )


def _nullable(column: Column) -> Column:
    return replace(
        column,
        flag=column.flag & ~FLAG_NOT_NULL,
        default=None if column.default_is_expr else column.default,
        default_is_expr=False,
    )


def _check_rename(table: Table, was: Column, column: Column) -> None:
    if column.name in _key_names(table):
        raise UnionError(f"a key needs {column.name}, which others have as {was.name}")
    if _type_of(was) != _type_of(column):
        raise UnionError(f"{column.name} gets another type, too")


def _key_names(table: Table) -> Iterator[str]:
    yield from table.primary_key
    for index in table.indexes:
        if index.unique:
            yield from (name for name, _, _ in index.columns)


def _type_of(column: Column) -> tuple[object, ...]:
    return (
        column.id, column.tp, column.flen, column.decimal, column.flag, column.charset,
        column.collate, column.elems, column.generated,
    )  # fmt: skip
