"""What is replicated at all. So far: everything but the system schemas and the checkpoint's own."""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "inspection_schema"})
_INTERNAL_TABLE_IDS = 0xFFFFFFFFFFFF - 1000
"""Table ids above this are TiDB's own DDL tables."""


@dataclass(frozen=True, slots=True)
class Filter:
    """`ignored_schemas` in lower case."""

    ignored_schemas: frozenset[str] = SYSTEM_SCHEMAS | {"tidb_binlog", "sluice_recycle"}

    def wants_schema(self, schema: str) -> bool:
        """Whether anything of `schema` goes downstream."""
        return schema.lower() not in self.ignored_schemas

    def wants_table(self, schema: str, table: str) -> bool:
        """Whether changes and DDL of a table go downstream."""
        return self.wants_schema(schema)


def is_internal_table(table_id: int) -> bool:
    """Whether an id belongs to one of TiDB's internal tables, which no schema history describes."""
    return table_id > _INTERNAL_TABLE_IDS
