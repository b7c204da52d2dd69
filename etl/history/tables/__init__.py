"""Show what is known of each table: rows, changes, verification, and schema changes.

For people; nothing here needs Spark, and a source that doesn't answer is named beside the others'
answers.
"""

from sluice.etl.history.tables.catalog import (
    TableCatalog,
    TableInfo,
    TableSelection,
    read_table_catalog,
)
from sluice.etl.history.tables.downstream_tables import (
    DownstreamTables,
    DownstreamTablesCache,
    DownstreamTableSize,
)
from sluice.etl.history.tables.schema_history import (
    SchemaChange,
    TableSchemaHistory,
    table_schema_history,
)

__all__ = [
    "DownstreamTableSize",
    "DownstreamTables",
    "DownstreamTablesCache",
    "SchemaChange",
    "TableCatalog",
    "TableInfo",
    "TableSchemaHistory",
    "TableSelection",
    "read_table_catalog",
    "table_schema_history",
]
