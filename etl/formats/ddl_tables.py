"""The tables a DDL job is about, as a window record describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from upstream.schema import Table


def tables_of(ddl: Mapping[str, Any], part: str) -> dict[int, Table | None]:
    """The tables in a DDL's `effect` or in its `before`, by id; None = gone."""
    source = (ddl.get("effect") or {}).get("tables") if part == "effect" else ddl.get(part)
    return {int(i): Table.from_json(t) if t else None for i, t in (source or {}).items()}


def table_pairs(ddl: Mapping[str, Any]) -> Iterator[tuple[Table, Table]]:
    """Every table that is there before and after a DDL. PARTITION BY and the like give a table a new id under its old
    name.
    """
    before = tables_of(ddl, "before")
    after = tables_of(ddl, "effect")
    gone = {
        (t.schema_name.lower(), t.name.lower()): t for i, t in before.items() if t is not None and after.get(i) is None
    }
    for table_id, table in after.items():
        if table is not None:
            old = before.get(table_id) or gone.get((table.schema_name.lower(), table.name.lower()))
            if old is not None:
                yield old, table
