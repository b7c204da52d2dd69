"""Columns whose values a base lacks, so that another server can't be given them."""

from __future__ import annotations

from etl.formats.ddl_forms import unsure_columns
from relay.archive import BaseTable
from upstream.schema import Table

__all__ = ["lacking"]


def lacking(table: BaseTable) -> list[str]:
    """Return the stored generated columns that another server may compute otherwise, and that the base lacks."""
    if not table.files or not any(column.get("generated_stored") for column in table.table.get("columns", ())):
        return []
    return [name for name in unsure_columns(Table.from_json(table.table)) if not table.holds(name)]
