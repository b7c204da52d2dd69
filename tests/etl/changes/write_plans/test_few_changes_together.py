"""Few changes of many tables: reduced together they come to the same steps, byte for byte, as each
table's alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluice.tidb.kernel
from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans import ChangeSet, StageTimings
from sluice.etl.changes.write_plans import same_shape_tables as alike_tables
from sluice.etl.changes.write_plans.same_shape_tables import small_net_effects
from sluice.etl.changes.write_plans.small_batches import MAX_SMALL_CHANGES, SmallNetEffect
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb.rows import RowDecodeError, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Table
from tests.etl.changes.write_plans.test_few_changes import (
    BY_U,
    REST,
    TABLES,
    A,
    B,
    compiled,
    reduced_alone,
    row,
)
from tests.examples import examples

__all__ = ["compiled"]  # so that it holds here, too

ADDED = Column(6, "w", 4, 8, origin_default="7", default="7")
PRICE = Column(8, "p", 4, 246, flen=10, decimal=2)
BYTES = Column(7, "x", 4, 15, charset="binary", collate="binary", flen=20)
ALL = TABLES | {
    "a column more": Table(8, 1, "d", "t", (A, B, *REST[:2], ADDED), (BY_U,), pk_is_handle=True),
    "price": Table(10, 1, "d", "t", (A, B, *REST[:2], PRICE), (BY_U,), pk_is_handle=True),
    "bytes": Table(9, 1, "d", "t", (A, B, *REST[:2], BYTES), pk_is_handle=True),
}
"""Of the first one rows may have been written before it had its last column."""

Change = tuple[int, bytes]


def history(table: Table, rng: random.Random, count: int) -> list[Change]:
    """So many changes, now and then one that contradicts the others, or that isn't written as rows
    are.
    """
    before = (
        replace(table, columns=table.columns[:4])
        if ADDED in table.columns and rng.random() < 0.3
        else table
    )
    of_key = table.columns[0]
    if not of_key.unsigned and rng.random() < 0.05:  # the key's numbers have the other flag
        before = replace(
            table, columns=(replace(of_key, flag=of_key.flag | 32), *table.columns[1:])
        )

    def image(key: int) -> dict[str, Any]:
        others = {"w": 5, "x": b"\xff", "d": 0.5, "p": rng.choice(["1.25", "1.25", "-1.25"])}
        return (
            row(key, rng.choice(["x", "x", "é\t", ""]), u=rng.choice([key % 9, key % 9, 3]))
            | others
        )

    keys = [
        *range(8),
        2**63 - 1,
        2**64 - 1 if of_key.unsigned else 9 if before.columns[0].unsigned else -1,
    ]
    there: dict[int, dict[str, Any]] = {n: image(n) for n in (0, 1, 2, 3, keys[-1])}
    changes: list[Change] = []
    for _ in range(count):
        kind = rng.choice([INSERT, UPDATE, UPDATE, DELETE])
        key = rng.choice(keys)
        new = image(key)
        known = there.get(key)
        if kind == INSERT and (known is None or rng.random() < 0.01):
            changes.append((INSERT, encode_insert(before, new)))
            there[key] = new
        elif kind == UPDATE and known is not None:
            changes.append((UPDATE, encode_update(before, known, new)))
            there[key] = new
        elif kind == DELETE and (known is not None or rng.random() < 0.01):
            changes.append((DELETE, encode_delete(before, known or new)))
            there.pop(key, None)
        if changes and rng.random() < 0.005:
            changes[-1] = (
                changes[-1][0],
                changes[-1][1][: rng.randrange(len(changes[-1][1]) or 1)],
            )
    return changes


def segment_of(
    histories: list[tuple[Table, list[Change]]], rng: random.Random, **more: Any
) -> ChangeSet:
    """The changes of all tables, mixed."""
    turns = [number for number, (_, changes) in enumerate(histories) for _ in changes]
    rng.shuffle(turns)
    left = [iter(changes) for _, changes in histories]
    rows = [(10 + n // 3, 1, n, histories[i][0].id, 1, *next(left[i])) for n, i in enumerate(turns)]
    columns = [
        pa.array([each[n] for each in rows], field.type) for n, field in enumerate(PART_SCHEMA)
    ]
    whole = pa.Table.from_arrays(columns, schema=PART_SCHEMA)
    of_tables = np.array(turns, np.int64)
    tables = tuple(
        (table, np.flatnonzero(of_tables == number)) for number, (table, _) in enumerate(histories)
    )
    return ChangeSet(
        changes=whole,
        tables=tuple(each for each in tables if len(each[1])),
        after=9,
        through=10 + len(rows),
        **more,
    )


def steps_of(few: SmallNetEffect | None) -> list[Step] | None:
    return None if few is None else [*few.deletes(), *few.loads()]


def compare(segment: ChangeSet) -> list[list[Step] | None]:
    try:
        alone = [steps_of(reduced_alone(segment, *each)) for each in segment.tables]
    except RowDecodeError:  # where it is known at once what is wrong
        with pytest.raises(RowDecodeError):
            small_net_effects(segment, StageTimings())
        return []
    assert list(map(steps_of, small_net_effects(segment, StageTimings()))) == alone
    return alone


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(ALL)), st.sampled_from([1, 2, 3, 5, 20, MAX_SMALL_CHANGES + 5])
        ),
        max_size=25,
    ),
    st.sampled_from(list(ALL)),
    st.lists(st.sampled_from([1, 3, 12]), max_size=12),
    st.integers(0, 2**32).map(random.Random),
    st.sampled_from([1, 7, 1024]),
    st.sets(st.integers(100, 130), max_size=2),
)
def test_many_tables_come_to_what_each_comes_to_alone(
    some: list[tuple[str, int]],
    often: str,
    counts: list[int],
    rng: random.Random,
    together: int,
    partial: set[int],
) -> None:
    wanted = [*some, *((often, count) for count in counts)]
    tables = [
        (replace(ALL[name], id=100 + n, name=f"t{n}", schema_name=rng.choice("de")), c)
        for n, (name, c) in enumerate(wanted)
    ]
    histories = [(table, history(table, rng, count)) for table, count in tables]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike_tables, "MAX_BATCHED_CHANGES", together)
        compare(segment_of(histories, rng, partial=frozenset(partial)))


def alike(count: int, changes: list[Change], name: str) -> list[tuple[Table, list[Change]]]:
    return [(replace(ALL[name], id=100 + n, name=f"t{n}"), changes) for n in range(count)]


def test_a_table_that_takes_a_closer_look_leaves_the_others_where_they_are() -> None:
    table = ALL["price"]
    one, other = row(2, p="1.25"), row(2, "y", p="1.25")
    good = [
        (DELETE, encode_delete(table, row(1, p="1.25"))),
        (UPDATE, encode_update(table, one, other)),
    ]
    for bad in (
        [good[0], good[0]],
        [(INSERT, b"\x08")],
        [(INSERT, encode_insert(table, one))] * (MAX_SMALL_CHANGES + 1),
        [good[0], (UPDATE, encode_update(table, one, one | {"p": "-1.25"}))],
    ):
        histories = alike(30, good, "price")
        histories[17] = histories[17][0], bad
        found = compare(segment_of(histories, random.Random(1)))
        assert [number for number, steps in enumerate(found) if steps is None] == [17]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many changes each call of the kernel was about."""
    counted: list[int] = []
    walk = sluice.tidb.kernel.walk

    def counting(data: Any, begins: Any, places: Any, *rest: Any) -> Any:
        counted.append(len(places))
        return walk(data, begins, places, *rest)

    monkeypatch.setattr(sluice.tidb.kernel, "walk", counting)
    return counted


def test_alike_tables_take_one_call_and_large_rows_some_more(walks: list[int]) -> None:
    table = TABLES["number"]
    for text, most in (("x", 100), ("x" * 40_000, 30)):
        walks.clear()
        changes = [(INSERT, encode_insert(table, row(1, text)))]
        small_net_effects(
            segment_of(alike(100, changes, "number"), random.Random(1)), StageTimings()
        )
        assert sum(walks) == 100
        assert max(walks) <= most
        assert len(walks) <= 100 // most + 2


def test_without_the_kernel_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.tidb.kernel, "walk", lambda *arguments: None)
    table = TABLES["number"]
    segment = segment_of(
        alike(9, [(INSERT, encode_insert(table, row(1)))], "number"), random.Random(1)
    )
    assert small_net_effects(segment, StageTimings()) == [None] * 9
