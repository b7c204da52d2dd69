"""The made-up traffic of `sluice bench apply --shape` is one that a TiDB could have written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.bench.shape_parts import history
from sluice.bench.shapes import SHAPES
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates

_DECODERS = {INSERT: decode_inserts, UPDATE: decode_updates, DELETE: decode_deletes}


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize("name", SHAPES)
def test_the_rows_of_a_shape_can_be_read_and_as_many_are_left_as_it_says(name: str) -> None:
    made = history(replace(SHAPES[name](), rows=40, changes=80))
    changes = [change for transaction in made.transactions for change in transaction]
    assert len(changes) == 120
    assert {kind for _, kind, _ in changes[:40]} == {INSERT}
    left = Counter(dict.fromkeys(made.counts, 0))
    for table, kind, row in changes:
        _DECODERS[kind](table, pa.array([row], pa.large_binary()))
        left[table.full_name] += {INSERT: 1, UPDATE: 0, DELETE: -1}[kind]
    assert left == made.counts
