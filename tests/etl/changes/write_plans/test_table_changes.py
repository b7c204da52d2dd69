"""The net effect of one table's changes, as steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from sluice.etl.changes.write_plans import StageTimings
from sluice.etl.changes.write_plans.raw_changes import RawChanges
from sluice.etl.changes.write_plans.table_changes import TableChanges
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Table

KEYLESS = Table(
    2,
    1,
    "d",
    "k",
    (Column(1, "a", 0, 3), Column(2, "b", 1, 3)),
    partition={"type": 2, "expr": "`a`", "num": 2, "enable": True},
)
TABLE = Table(1, 1, "d", "t", (Column(1, "id", 0, 3, 3), Column(2, "f", 1, 4)), pk_is_handle=True)


def steps_of_update(before: float, after: float) -> list[str]:
    row = encode_update(TABLE, {"id": 1, "f": before}, {"id": 1, "f": after})
    changes = TableChanges(
        TABLE,
        RawChanges(np.array([UPDATE], np.int8), np.array([5]), pa.array([row], pa.large_binary())),
        StageTimings(),
    )
    return [bytes(step.payload).decode() for step in [*changes.deletes(), *changes.loads()]]


def test_a_float_that_changes_only_in_digits_nobody_sees_is_no_change_downstream() -> None:
    """A server doesn't count a REPLACE by the same row, so writing it would look like a row that is
    missing.
    """
    one = float(np.float32(1.2345678e20))
    other = float(np.nextafter(np.float32(one), np.float32(np.inf)))
    assert one != other
    assert steps_of_update(one, other) == []
    assert steps_of_update(1.5, 2.5) == ["1\t2.5\n"]


def steps_of(table: Table, *changes: tuple[int, bytes]) -> list[str]:
    kinds, rows = [kind for kind, _ in changes], [row for _, row in changes]
    raw = RawChanges(
        np.array(kinds, np.int8), np.arange(len(rows)) + 5, pa.array(rows, pa.large_binary())
    )
    found = TableChanges(table, raw, StageTimings())
    return [bytes(step.payload).decode() for step in [*found.deletes(), *found.loads()]]


def test_rows_of_two_partitions_are_two_rows_whatever_their_row_ids() -> None:
    one, other = {"a": 1, "b": 0, ROWID_NAME: 1}, {"a": 2, "b": 0, ROWID_NAME: 1}
    updates = [(UPDATE, encode_update(KEYLESS, row, row | {"b": 5})) for row in (one, other)]
    assert steps_of(KEYLESS, *updates) == [
        "DELETE FROM `d`.`k` WHERE `a`<=>1 AND `b`<=>0 LIMIT 1",
        "DELETE FROM `d`.`k` WHERE `a`<=>2 AND `b`<=>0 LIMIT 1",
        "1\t5\n2\t5\n",
    ]


def test_a_row_that_moves_to_another_partition_comes_before_it_goes() -> None:
    row = {"a": 1, "b": 0, ROWID_NAME: 1}
    moved = row | {"a": 2}
    assert steps_of(
        KEYLESS,
        (INSERT, encode_insert(KEYLESS, moved)),
        (DELETE, encode_delete(KEYLESS, row)),
        (DELETE, encode_delete(KEYLESS, moved)),
    ) == ["DELETE FROM `d`.`k` WHERE `a`<=>1 AND `b`<=>0 LIMIT 1"]


def test_a_row_that_goes_without_a_column_being_dropped_is_the_one_that_came_with_it() -> None:
    row = {"a": 1, "b": 7, ROWID_NAME: 1}
    dropping = replace(KEYLESS, columns=KEYLESS.columns[:1])
    assert (
        steps_of(
            KEYLESS, (INSERT, encode_insert(KEYLESS, row)), (DELETE, encode_delete(dropping, row))
        )
        == []
    )
