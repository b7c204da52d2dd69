"""Find columns whose values a snapshot lacks, so that another server can't be given them."""

from __future__ import annotations

from sluice.etl.changes.formats.table_fallbacks import zone_dependent_columns
from sluice.relay.archive import SnapshotTable
from sluice.tidb.schema import Table

__all__ = ["columns_lacking_in_snapshot"]


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
