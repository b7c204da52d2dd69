"""Build other forms of a table, for servers that don't take it as it is, with the same rows.

Whatever else may be missing, no value is. Every form is made from the table alone. What it changes
is found by comparing it with the table: `describe_fallback`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from sluice.etl.changes.formats.ddl_partitions import plain_name
from sluice.relay.archive import SnapshotTable
from sluice.tidb import column_types
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_BYTE_TYPES = {"varbinary", "binary", "tinyblob", "blob", "mediumblob", "longblob"}
_LONG_TYPES = {
    f"{size}{kind}": tp
    for size, tp in zip(("tiny", "", "medium", "long"), column_types.LONG)
    for kind in ("text", "blob")
}
_STRING_TYPES = (*column_types.VARYING, column_types.CHAR)
_WIDE_COLUMN_BYTES = 256  # servers limit the sum of all columns to 65,535 bytes
# what InnoDB keeps of a long value in the row itself, which has 8126 bytes
_LOCAL_COLUMN_BYTES = 40

# A STORED generated column is left to the server only if what it computes is beyond doubt the same:
# these functions of these types.
_PORTABLE_KINDS = {"int", "text", "date", "datetime", "binary"}
_PORTABLE_FUNCTIONS = {
    "concat",
    "left",
    "right",
    "upper",
    "lower",
    "ucase",
    "lcase",
    "substr",
    "substring",
    "length",
    "char_length",
    "trim",
    "ltrim",
    "rtrim",
    "md5",
    "sha1",
    "sha2",
    "year",
    "month",
    "day",
    "coalesce",
    "ifnull",
    "if",
    "nullif",
    "abs",
    "reverse",
    "hex",
}
_EXPRESSION = re.compile(
    r"`((?:[^`]|``)*)`|'(?:[^'\\]|'')*'|(_utf8mb4|_utf8)(?=')|"
    r"([a-z_][a-z0-9_]*)(?=\()|(null|and|or|not)\b|\d+(?![\d.e])|[-+*(),<>=! ]",
    re.IGNORECASE,
)

Fallback = Callable[[Table], Table]


def with_server_computed(table: Table) -> Table:
    """Return the table with server-dependent STORED generated columns as plain columns.

    Their values may depend on the server or on its session's time zone: rows bring TiDB's values.
    """
    by_name = {folded(column.name): column for column in table.columns}
    return _with_columns(
        table,
        lambda c: (
            c
            if not (c.generated and c.generated_stored) or _is_portable(c, by_name)
            else _plain_column(c)
        ),
    )


def zone_dependent_columns(table: Table) -> list[str]:
    """Return names of the STORED generated columns that `with_server_computed` makes plain ones."""
    held = {column.id for column in with_server_computed(table).columns if column.generated}
    return [
        column.name for column in table.stored_columns if column.generated and column.id not in held
    ]


def without_generated(table: Table) -> Table:
    """Return all STORED generated columns as plain ones."""
    return _with_columns(table, lambda c: _plain_column(c) if c.generated_stored else c)


def without_virtual(table: Table) -> Table:
    """Leave out generated columns that no row holds, and the indexes over them.

    Those that rules add stay: the settings ask for them.
    """
    return replace(table, columns=tuple(c for c in table.columns if not c.virtual or c.computed))


def without_defaults(table: Table) -> Table:
    """Return the table without what only matters to programs that write by themselves.

    These are defaults that are expressions or of long columns, and AUTO_INCREMENT.
    """

    def bare(column: Column) -> Column:
        keeps = not column.default_expression and column.tp not in column_types.LONG
        return replace(
            column,
            default=column.default if keeps else None,
            default_is_expr=False,
            flag=column.flag & ~column_types.FLAG_AUTO_INCREMENT,
        )

    return replace(_with_columns(table, bare), auto_increment=0)


def without_foreign_keys(table: Table) -> Table:
    """Leave out foreign keys: rows are never checked against them."""
    return replace(table, foreign_keys=())


def without_partitions(table: Table) -> Table:
    """Return the table in one piece."""
    return replace(table, partition=None)


def widened_strings(table: Table) -> Table:
    """Return the table with its longer VARCHARs and VARBINARYs as TEXT and BLOB.

    Those that are in an index stay. It is for servers that limit the sum of all columns' lengths
    (65,535 bytes; TiDB has no such limit). What they hold and how it compares is the same.
    """
    return _as_long_types(table, column_types.VARYING, _WIDE_COLUMN_BYTES)


def off_page_storage(table: Table) -> Table:
    """Return the table with large string columns stored outside of the row.

    These are columns in no index that may take more room in their row than the 40 bytes that TEXT
    and BLOB need there: InnoDB has 8126 bytes for a row.
    """
    return _as_long_types(table, _STRING_TYPES, _LOCAL_COLUMN_BYTES)


FALLBACKS: tuple[Fallback, ...] = (
    without_generated,
    widened_strings,
    off_page_storage,
    without_defaults,
    without_foreign_keys,
    without_virtual,
    without_partitions,
)
"""Forms that may be tried, the least harm first."""


def fallbacks(table: Table) -> Iterator[Fallback]:
    """Yield the forms of a table, the least change first.

    First nothing but `with_server_computed`, then each other form, at last one more after the
    other. Those that would change nothing are left out.
    """
    seen: list[Table] = []
    for form in (
        with_server_computed,
        *(_composed(with_server_computed, form) for form in FALLBACKS),
        *itertools.accumulate((with_server_computed, *FALLBACKS), _composed),
    ):
        if (made := form(table)) not in seen:
            seen.append(made)
            yield form


def _composed(first: Fallback, then: Fallback) -> Fallback:
    return lambda table: then(first(table))


def describe_fallback(table: Table, form: Table) -> list[str]:
    """Return what of a table is other in one of its forms, one sentence each."""
    found = []
    kept = {column.id: column for column in form.columns}
    longer = []
    for column in (c for c in table.columns if c.public and not c.hidden):
        held = kept.get(column.id)
        if held is None:
            found.append(
                f"generated column {column.name} of {table.full_name} left out: its values are in"
                " no row"
            )
        elif column.generated and not held.generated:
            found.append(
                f"generated column {column.name} of {table.full_name} is a plain column with the"
                " upstream's values"
            )
        elif column.tp != held.tp:
            longer.append(column.name)
        if held is not None and column.default_expression and not held.default_expression:
            found.append(
                f"default of {column.name} of {table.full_name} left out: {column.default!s}"
            )
    if longer:
        found.append(
            f"{', '.join(longer)} of {table.full_name} made TEXT or BLOB: the rows are too wide for"
            " the downstream"
        )
    if table.foreign_keys and not form.foreign_keys:
        found.append(f"foreign keys of {table.full_name} left out")
    if table.partition and table.partition.get("enable", True) and not form.partition:
        found.append(f"{table.full_name} is created without its partitions")
    return found


def as_stored_downstream(column: Column, data_type: str, *, generated: bool) -> Column:
    """Return a column as the downstream has it: longer, or as a plain column."""
    if column.generated_stored and not generated:
        column = _plain_column(column)
    if data_type in _BYTE_TYPES and column.kind == "text":
        column = as_bytes(column)
    if data_type in _LONG_TYPES and column.tp in _STRING_TYPES:
        column = replace(column, tp=_LONG_TYPES[data_type], flen=-1)
    return column


def as_bytes(column: Column) -> Column:
    """Return a column of text as one of bytes that holds the same."""
    flen = column.flen * 4 if column.tp in _STRING_TYPES else column.flen
    return replace(
        column,
        charset="binary",
        collate="binary",
        flen=flen,
        tp=column_types.VARCHAR if column.tp == column_types.CHAR else column.tp,
    )


def holds_bytes(column: Column, data_type: str) -> bool:
    """Return whether the downstream holds a column of text as bytes."""
    return data_type in _BYTE_TYPES and column.kind == "text"


def is_longer(column: Column, data_type: str) -> bool:
    """Return whether the downstream holds a shorter string column as TEXT or BLOB."""
    return data_type in _LONG_TYPES and column.tp in _STRING_TYPES


def _with_columns(table: Table, change: Callable[[Column], Column]) -> Table:
    return replace(table, columns=tuple(change(column) for column in table.columns))


def _plain_column(column: Column) -> Column:
    return replace(column, generated="", generated_stored=False)


def _is_portable(column: Column, by_name: dict[str, Column]) -> bool:
    """Return whether every server computes the same for a generated column."""
    text, at = column.generated, 0
    while at < len(text):
        match = _EXPRESSION.match(text, at)
        if match is None:
            return False
        name, function = match[1], match[3]
        if name is not None:
            used = by_name.get(folded(name.replace("``", "`")))
            if used is None or used.kind not in _PORTABLE_KINDS:
                return False
        if function is not None and function.lower() not in _PORTABLE_FUNCTIONS:
            return False
        at = match.end()
    return column.kind in _PORTABLE_KINDS


def bound_columns(table: Table) -> set[str]:
    """Return lower-case names of the columns that an index or the partitions need as they are."""
    bound = {folded(name) for index in table.indexes for name, _, _ in index.columns}
    bound |= {folded(c.name) for c in table.columns if c.flag & column_types.FLAG_PRIMARY_KEY}
    bound |= {folded(plain_name(c)) for key in table.foreign_keys for c in key.get("cols") or ()}
    partition = table.partition or {}
    bound |= {folded(plain_name(c)) for c in partition.get("columns") or ()}
    expression = folded(str(partition.get("expr") or ""))
    return bound | {folded(c.name) for c in table.columns if f"`{folded(c.name)}`" in expression}


def _as_long_types(table: Table, types: tuple[int, ...], over_bytes: int) -> Table:
    bound = bound_columns(table)

    def long(column: Column) -> Column:
        size = column.flen * (1 if column.kind == "binary" else 4)
        if (
            column.tp not in types
            or column.generated
            or size < over_bytes
            or folded(column.name) in bound
        ):
            return column
        return replace(column, tp=_smallest_long_type(column), flen=-1)

    return _with_columns(table, long)


def _smallest_long_type(column: Column) -> int:
    size = column.flen * (1 if column.kind == "binary" else 4)
    return column_types.TEXT if size <= 65_535 else column_types.MEDIUMTEXT


def kept_as_long_type(column: Column, was: Column, data_type: str) -> Column:
    """Return `column`, so far TEXT or BLOB downstream, long enough for what it is to hold now."""
    if not is_longer(column, data_type) or was.tp not in _STRING_TYPES or column.kind != was.kind:
        return column
    return replace(
        column,
        tp=max(_LONG_TYPES[data_type], _smallest_long_type(column), key=column_types.LONG.index),
        flen=-1,
    )


def columns_lacking_in_snapshot(table: SnapshotTable) -> list[str]:
    """Return stored generated columns that the snapshot lacks and servers may compute otherwise."""
    if not table.files or not any(
        column.get("generated_stored") for column in table.table.get("columns", ())
    ):
        return []
    return [
        name
        for name in zone_dependent_columns(Table.from_json(table.table))
        if not table.holds(name)
    ]
