"""Change the rows of one source in a merged table where its DDL can't be a statement for all.

Every statement here may run twice.
"""

from __future__ import annotations

from sluice.etl.changes.formats.ddl_columns import added_columns
from sluice.etl.changes.formats.sql_columns import literal_column
from sluice.etl.changes.formats.sql_text import literal, quote_name, quote_table
from sluice.etl.changes.rules import source_condition
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import MySQLSession
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.columnar import arrow_type, from_values
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column

__all__ = ["fill_added_columns", "move_sources"]


def move_sources(session: MySQLSession, ddl: ScopedDdl) -> bool:
    """Give rows another source, or remove them; return whether the DDL is nothing else."""
    for moved in ddl.moved_sources:
        table = f"{quote_name(moved.schema)}.{quote_name(moved.table)}"
        name = quote_name(moved.column)
        verb = f"UPDATE {table} SET {name} = {literal(moved.new)}"
        session.execute(
            f"{verb if moved.new else f'DELETE FROM {table}'} WHERE {name} = {literal(moved.old)}"
        )
    return bool(ddl.moved_sources) and not ddl.effect.tables and not ddl.effect.schemas


def fill_added_columns(session: MySQLSession, ddl: ScopedDdl) -> None:
    """Give the source's rows what they have upstream in columns that the DDL adds.

    Another source may have brought such a column before, with another default or none.
    """
    renamed = {folded(new): old for new, old in ddl.renamed_for_source}
    for table, column in added_columns(ddl):
        source = table.source_column
        if source is None or column.generated or column.names_source:
            continue
        name = quote_name(column.name)
        former = renamed.get(folded(column.name))
        value = _origin_default(column) if former is None else quote_name(former)
        session.execute(
            f"UPDATE {quote_table(table)} SET {name} = {value} WHERE {source_condition(source)}"
            f" AND NOT {name} <=> {value}"
        )


def _origin_default(column: Column) -> str:
    """Return the value of rows that were written before the column was there, in SQL."""
    values = from_values([missing_value(column)], arrow_type(column))
    return bytes(literal_column(values, column)[0].as_py() or b"NULL").decode()
