"""A table in parts: two readings are compared part by part, and only the rows of parts that differ
travel.
"""

from __future__ import annotations

import json
import random

import pyarrow as pa

from sluice.etl.history.as_of.hash_partitions import PartSums, rows_of_parts
from sluice.tidb.rows import arrow_schema
from tests.etl.story import table

KEYED = table(1, "keyed", "id bigint", "name varchar(20)", "d double", primary="id")
HEAP = table(2, "heap", "name varchar(20)", "d double")


def rows_of(made: object, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, arrow_schema(made))  # type: ignore[arg-type]


def summed(made: object, rows: list[dict[str, object]], size: int = 7) -> PartSums:
    sums = PartSums(64)
    for first in range(0, len(rows), size):
        sums.add(made, rows_of(made, rows[first : first + size]))  # type: ignore[arg-type]
    return sums


def some_rows(count: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"n{n % 5}", "d": n / 3} for n in range(count)]


def test_the_order_of_rows_and_how_they_came_makes_no_difference() -> None:
    rows = some_rows(200)
    mixed = random.Random(1).sample(rows, len(rows))
    assert summed(KEYED, rows, 7).differing(summed(KEYED, mixed, 50)) == []


def test_a_different_row_shows_in_the_part_of_its_key_alone_and_is_found_there_on_both_sides() -> (
    None
):
    rows = some_rows(200)
    wrong = [row | {"name": "n0 "} if row["id"] == 100 else row for row in rows]
    (part,) = summed(KEYED, rows).differing(summed(KEYED, wrong))
    here = rows_of_parts(KEYED, rows_of(KEYED, rows), 64, [part]).to_pylist()
    there = rows_of_parts(KEYED, rows_of(KEYED, wrong), 64, [part]).to_pylist()
    assert [row["id"] for row in here] == [row["id"] for row in there]
    assert [row for row in there if row not in here] == [{"id": 100, "name": "n0 ", "d": 100 / 3}]


def test_a_row_that_is_there_twice_and_a_zero_s_sign_show_in_a_table_without_a_key() -> None:
    rows: list[dict[str, object]] = [{"name": "a", "d": 0.0}, {"name": None, "d": 1.0}]
    assert summed(HEAP, rows).differing(summed(HEAP, [*rows, rows[1]]))
    assert summed(HEAP, rows).differing(summed(HEAP, [{"name": "a", "d": -0.0}, rows[1]]))
    assert summed(HEAP, rows).differing(summed(HEAP, [rows[0], {"name": "", "d": 1.0}]))


def test_sums_come_back_from_json_and_those_of_two_stretches_are_those_of_the_whole() -> None:
    rows = some_rows(100)
    parts = summed(KEYED, rows[:30])
    parts.add_all(PartSums.from_json(json.loads(json.dumps(summed(KEYED, rows[30:]).to_json()))))
    assert parts.differing(summed(KEYED, rows)) == []
    assert parts.rows == 100
