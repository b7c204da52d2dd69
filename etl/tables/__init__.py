"""What is known of each table: rows, changes, verification, and what DDL made of it. For people; nothing here needs
Spark, and a source that doesn't answer is named beside what the others say.
"""

from etl.tables.known import KnownTable, KnownTables, Selection, known_tables
from etl.tables.replica import Replica, Replicas, ReplicaTable
from etl.tables.schema_past import SchemaChange, SchemaPast, schema_past

__all__ = [
    "KnownTable",
    "KnownTables",
    "Replica",
    "ReplicaTable",
    "Replicas",
    "SchemaChange",
    "SchemaPast",
    "Selection",
    "known_tables",
    "schema_past",
]
