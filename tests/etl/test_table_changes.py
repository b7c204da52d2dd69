"""The net effect of one table's changes, as steps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from etl._table_changes import TableChanges
from etl.net_effect import UPDATE
from etl.shapes import Timings
from upstream.rows import encode_update
from upstream.schema import Column, Table

TABLE = Table(1, 1, "d", "t", (Column(1, "id", 0, 3, 3), Column(2, "f", 1, 4)), pk_is_handle=True)


def steps_of_update(before: float, after: float) -> list[str]:
    row = encode_update(TABLE, {"id": 1, "f": before}, {"id": 1, "f": after})
    changes = TableChanges(TABLE, np.array([UPDATE], np.int8), pa.array([row], pa.large_binary()), np.array([5]), Timings())
    return [bytes(step.payload).decode() for step in [*changes.deletes(), *changes.loads()]]


def test_a_float_that_changes_only_in_digits_nobody_sees_is_no_change_downstream() -> None:
    """A server doesn't count a REPLACE by the same row, so writing it would look like a row that is missing."""
    one = float(np.float32(1.2345678e20))
    other = float(np.nextafter(np.float32(one), np.float32(np.inf)))
    assert one != other
    assert steps_of_update(one, other) == []
    assert steps_of_update(1.5, 2.5) == ["1\t2.5\n"]
