"""Copy the rows alone that row rules select. A copied row counts as inserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from sluice.etl.changes.conditions import BoundCondition, ImagePair, parse_condition
from sluice.etl.changes.rules import RowSelection
from sluice.relay import INSERT
from sluice.tidb.schema import Table

__all__ = ["conditions_of", "selected_rows", "where_sql"]


def conditions_of(selection: RowSelection | None) -> tuple[str, ...]:
    """Return the conditions, as they were typed, that a table's inserted rows meet."""
    rules = () if selection is None else selection.rules
    return tuple(rule.where for rule in rules if INSERT in rule.kinds)


def selected_rows(
    batches: Iterable[pa.RecordBatch], table: Table, where: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that meet all conditions, one at least. Raises ConditionError."""
    bound = [BoundCondition(parse_condition(one), table) for one in where]
    for batch in batches:
        images = dict(zip(batch.schema.names, batch.columns, strict=True))
        pair = ImagePair(batch.num_rows, None, images)
        mask = np.logical_and.reduce([condition.holds(pair, "new") for condition in bound])
        found = batch.filter(pa.array(mask))
        if found.num_rows:
            yield found


def where_sql(table: Table, where: Sequence[str]) -> str:
    """Return the same conditions as SQL. Raises ConditionError."""
    parts = [BoundCondition(parse_condition(one), table).sql() for one in where]
    return " AND ".join(parts) or "TRUE"
