"""Random histories as of moments in them: keys that are exchanged in one transaction, tables
without keys, sessions that are behind or ahead of partition DDL. Models that know nothing of
windows say what is right.
"""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from sluice.etl.history.as_of import AsOfError, read_planner, run_locally
from sluice.etl.history.as_of.aggregations import CollectDiff, from_ipc
from sluice.etl.history.as_of.diff import CHANGE_COLUMN, CHANGED, DELETED, INSERTED
from sluice.etl.history.as_of.query_planner import plan_query
from tests.etl.history.as_of.asking import empty_start, plain, rows_as_of, with_buckets
from tests.etl.partition_history import Definition, PartitionHistory
from tests.etl.random_history import TABLES, History, Row
from tests.examples import examples

NAMES = [table.full_name for table in TABLES.values()]
_QUICK = settings(max_examples=examples(8), deadline=None, phases=[Phase.explicit, Phase.generate])


def small_portions(changes: int) -> object:
    """So many changes a portion at most, and so several workers' portions of a small history."""
    return mock.patch.object(read_planner, "_MAX_TASK_CHANGES", changes)


@_QUICK
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 50), st.integers(0, 50)),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([1, 20, 100_000]),
)
def test_rows_and_what_became_of_them_are_the_models(
    seed: int, counts: tuple[int, int], sizes: Sequence[int], buckets: int, portion: int
) -> None:
    history, at = History(seed), []
    for count in counts:
        history.grow(count)
        at.append((history._ts, copy.deepcopy(history.rows)))
    with tempfile.TemporaryDirectory() as folder, small_portions(portion):
        log = history.land(f"file://{folder}", sizes)
        last = log.last()
        if last is None:
            return
        start = [empty_start(log, list(TABLES.values()))]
        for ts, rows in at:
            found = rows_as_of(log, min(ts, last.hi), NAMES, start, buckets)
            for name, table in TABLES.items():
                assert plain(found[table.full_name]) == _sorted(name, rows[name].values()), (
                    f"{name} at {ts}"
                )
        (earlier, before), (later, after) = at
        if earlier < later:
            asked = plan_query(log, start, [earlier, later], NAMES)
            results = run_locally(
                with_buckets(asked.plans[0], buckets), CollectDiff(earlier, later)
            )
            told: dict[str, list[Row]] = {name: [] for name in NAMES}
            for result in results:
                told[result.name] += [
                    row for batch in from_ipc(result.payload) for row in batch.to_pylist()
                ]
            for name, table in TABLES.items():
                _check_differences(
                    name, told[table.full_name], before[name].values(), after[name].values()
                )


def _check_differences(
    name: str, told: list[Row], before: Sequence[Row], after: Sequence[Row]
) -> None:
    """The differences turn one into the other, and there is none for rows that are the same."""
    columns = [column.name for column in TABLES[name].columns]

    def image(row: Row, side: str) -> tuple[object, ...]:
        return tuple(row[f"{side}.{column}"] for column in columns)

    rows = Counter(_sorted(name, before))
    gone = Counter(image(row, "old") for row in told if row[CHANGE_COLUMN] in (DELETED, CHANGED))
    come = Counter(image(row, "new") for row in told if row[CHANGE_COLUMN] in (INSERTED, CHANGED))
    assert not gone - rows
    assert rows - gone + come == Counter(_sorted(name, after))
    assert all(
        image(row, "old") != image(row, "new") for row in told if row[CHANGE_COLUMN] == CHANGED
    )
    if key := TABLES[name].primary_key:
        changed = [row for row in told if row[CHANGE_COLUMN] == CHANGED]
        assert all(
            row[f"old.{column}"] == row[f"new.{column}"] for row in changed for column in key
        )
        lost = {
            tuple(row[f"old.{c}"] for c in key) for row in told if row[CHANGE_COLUMN] == DELETED
        }
        assert not lost & {
            tuple(row[f"new.{c}"] for c in key) for row in told if row[CHANGE_COLUMN] == INSERTED
        }


def _sorted(name: str, rows: Sequence[Row]) -> list[tuple[object, ...]]:
    columns = [column.name for column in TABLES[name].columns]
    return sorted((tuple(row[column] for column in columns) for row in rows), key=repr)


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("locks", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@_QUICK
@example(411, 10, [11], 1, 100_000)  # the moment is that of a DDL that keeps rows
# a transaction writes to a partition and the table it is exchanged with
@example(268435455, 36, [18, 25, 16, 2], 3, 1)
# a partition is exchanged and exchanged back within a transaction that writes to the table
@example(5569, 55, [10], 3, 5)
@example(1779834380, 77, [18, 11, 28], 2, 100_000)
@given(
    st.integers(0, 2**32),
    st.integers(5, 60),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([1, 5, 100_000]),
)
def test_sessions_behind_and_ahead_of_partition_ddl_leave_what_lies_in_the_partitions(
    keyed: bool, locks: bool, seed: int, count: int, sizes: list[int], buckets: int, portion: int
) -> None:
    history = PartitionHistory(seed, keyed, locks=locks)
    history.grow(count)
    history.settle()
    with tempfile.TemporaryDirectory() as folder, small_portions(portion):
        log = history.land(f"file://{folder}", sizes)
        last = log.last()
        if last is None:
            return
        start = empty_start(log, [history.table(Definition()), history.ordinary(102)])
        found = rows_as_of(log, last.hi, ["d.t", "d.u"], [start], buckets)
        assert {name: plain(found[f"d.{name}"]) for name in history.final} == history.final


def test_a_change_that_doesnt_fit_what_is_there_is_named() -> None:
    history = History(5)
    history.grow(60)
    with tempfile.TemporaryDirectory() as folder:
        log = history.land(f"file://{folder}", [20])
        windows = list(log.windows(0))
        late = windows[1].lo
        # A snapshot that says nothing was there, though rows were.
        start = empty_start(log, list(TABLES.values()))
        start = type(start)(late, start.tables, start.source)
        with pytest.raises(
            AsOfError,
            match=r"rnd\.\w+: at commit_ts \d+ a row is changed or removed though there is none",
        ):
            rows_as_of(log, windows[-1].hi, NAMES, [start])
