"""Conflict detection: what shares a key stays in order, what meets two groups waits for a flush."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.write_plans.unique_key_conflicts import ConflictSchedule, schedule_conflicts


def found(*changes: set[int], of: list[int] | None = None) -> ConflictSchedule:
    """`of`: each change's transaction; each has its own if it isn't given."""
    pairs = [(change, key) for change, keys in enumerate(changes) for key in keys]
    return schedule_conflicts(
        np.array(of or range(len(changes)), np.int64),
        np.array([p[0] for p in pairs], np.int64),
        np.array([p[1] for p in pairs], np.int64),
    )


def expected(changes: list[set[int]], of: list[int]) -> list[tuple[int, int]]:
    """(round, number of the group in it) by the rule as it is told: one transaction at a time, its
    changes that hang together as one set of keys, a flush before it on conflict.
    """
    groups: list[set[int]] = []
    number, result = 0, []
    for transaction in dict.fromkeys(of):
        own = [keys for keys, its in zip(changes, of, strict=True) if its == transaction]
        parts: list[set[int]] = []
        for keys in own:
            near = [part for part in parts if part & keys]
            parts = [part for part in parts if not part & keys] + [keys.union(*near)]
        if any(sum(1 for group in groups if group & part) > 1 for part in parts):
            number, groups = number + 1, []
        for keys in own:
            (part,) = [part for part in parts if part & keys]
            met = [group for group in groups if group & part]
            if met:
                met[0] |= part
            else:
                groups.append(set(part))
            result.append((number, next(i for i, group in enumerate(groups) if group & keys)))
    return result


def shown(dispatched: ConflictSchedule) -> list[tuple[int, int]]:
    """Groups numbered in the order in which they begin, round by round."""
    names: dict[tuple[int, int], int] = {}
    result = []
    for place in zip(dispatched.rounds.tolist(), dispatched.groups.tolist()):
        if place not in names:
            names[place] = sum(1 for number, _ in names if number == place[0])
        result.append((place[0], names[place]))
    return result


def test_three_statements_on_two_rows_run_in_the_documented_order() -> None:
    """SQL1: id 3 -> 4, SQL2: id 2 -> 5, SQL3: delete id 3.

    SQL3 must come after SQL1; SQL2 may run beside them.
    """
    sql1, sql2, sql3 = {3, 4}, {5, 2}, {3}
    result = found(sql1, sql2, sql3)
    assert shown(result) == [(0, 0), (0, 1), (0, 0)]
    assert result.flushes == 0


def test_a_change_that_meets_two_groups_waits_until_both_are_executed() -> None:
    result = found({3, 4}, {2, 5}, {5, 3}, {4})
    assert shown(result) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert result.flushes == 1


def test_every_change_needs_a_key() -> None:
    with pytest.raises(ValueError, match="3 changes, but keys for 2"):
        schedule_conflicts(np.arange(3), np.array([0, 2]), np.array([1, 1]))


def test_a_ring_of_values_in_one_transaction_is_never_cut() -> None:
    """-1 is held by what began with row 9; rows 1, 2 and 3 hand 10, 20 and -1 on in a ring."""
    result = found({9, -1}, {1, 10}, {1, 10, 20}, {2, 20, -1}, {3, -1, 10}, of=[1, 2, 3, 3, 3])
    assert shown(result) == [(0, 0), (0, 1), (1, 0), (1, 0), (1, 0)]


@given(
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(0, 12), min_size=1, max_size=4)),
        min_size=1,
        max_size=60,
    )
)
def test_rounds_and_groups_are_those_of_one_transaction_at_a_time(
    changes: list[tuple[bool, set[int]]],
) -> None:
    of = np.cumsum([begins for begins, _ in changes]).tolist()
    keys = [each for _, each in changes]
    assert shown(found(*keys, of=of)) == expected(keys, of)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60))
def test_changes_of_one_key_each_never_conflict(keys: list[int]) -> None:
    result = found(*({key} for key in keys))
    assert result.flushes == 0
    assert result.groups.tolist() == keys
