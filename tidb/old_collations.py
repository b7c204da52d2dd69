"""TiDB's old collation framework: every collation compares bytes, and trailing blanks count.

The bootstrap of a cluster decided whether it has the new one: the row `new_collation_enabled` of
`mysql.tidb` is True or False. Clusters from before TiDB 4.0 lack the row, and are old. With the new
one, collations in TableInfo hold; without it they are mere names. Here such columns are given the
collation that describes what happens, `<charset>_nopad_bin` (MariaDB's names).

Rows show it as well: the handle of a table with a clustered text key holds sort keys where there
are new collations, so the text itself is in the row (TiDB calls that restored data); without them
it is the text, and the row lacks the column.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.tidb import column_types
from sluice.tidb.codec.datum import skip_datum
from sluice.tidb.codec.row import column_ids, handle_columns
from sluice.tidb.schema import Column, Schema, Table

_NOPAD = "_nopad_bin"
_WIDER = {"utf8": "utf8mb4", "utf8mb3": "utf8mb4"}  # few servers have the collation for these


def binary_charset(charset: str) -> str:
    """Return the character set that replaces this one in a column that compares bytes."""
    return _WIDER.get(charset.lower(), charset)


def binary_collation(name: str) -> str:
    """Return the collation that compares bytes without padding, for a character set or collation.

    "" and binary stay.
    """
    charset = name.lower().partition("_")[0]
    return name if charset in ("", "binary") else binary_charset(charset) + _NOPAD


def is_binary(table: Table) -> bool:
    """Return whether a table is from a cluster with collations that compare bytes."""
    return table.collate.endswith(_NOPAD) or any(
        column.collate.endswith(_NOPAD) for column in table.columns
    )


def binary_table(table: Table) -> Table:
    """Return the table with the collations by which a cluster without new collations compares."""
    columns = tuple(
        replace(
            c, charset=binary_charset(c.charset), collate=binary_collation(c.collate or c.charset)
        )
        for c in table.columns
    )
    return replace(
        table,
        columns=columns,
        charset=binary_charset(table.charset),
        collate=binary_collation(table.collate or table.charset),
    )


def binary_schema(schema: Schema) -> Schema:
    """Return the database with such collations."""
    return replace(
        schema,
        charset=binary_charset(schema.charset),
        collate=binary_collation(schema.collate or schema.charset),
    )


def restored_columns(table: Table) -> tuple[int, ...]:
    """Return the ids of the clustered key's columns that inserted rows hold, beside the handle.

    They do so in a cluster with new collations, and in no other.
    """
    if table.handle_kind != "common":
        return ()
    return tuple(
        column.id
        for column, whole in handle_columns(table)
        if whole and _is_restored(table, column)
    )


def _is_restored(table: Table, column: Column) -> bool:
    """Return whether the column needs restored data, as TiDB's NeedRestoredData does.

    Of a `_bin` collation only VARCHARs lose something in the sort key, the blanks at their end, and
    TiDB 5.0 release candidates (version 0) may have gone by the collation alone.
    """
    if column.kind != "text" or column.collate in ("", "binary", "utf8mb4_0900_bin"):
        return False
    return not column.collate.endswith("_bin") or (
        column.tp in column_types.VARYING and table.common_handle_version > 0
    )


def shown_by_row(table: Table, row: bytes) -> bool | None:
    """Return whether the cluster that inserted `row` (handle ++ row) has new collations.

    None where it looks the same. Raises CodecError.
    """
    wanted = restored_columns(table)
    if not wanted:
        return None
    at = 0
    for _ in handle_columns(table):
        at = skip_datum(row, at)
    held = {column_id in column_ids(row[at:]) for column_id in wanted}
    return held.pop() if len(held) == 1 else None
