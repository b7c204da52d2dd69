"""Net effects against the plain way of executing changes one by one."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.write_plans.net_effect import (
    InconsistentHistory,
    key_codes,
    multiset_effect,
    net_effect,
    unchanged_rows,
)
from sluice.relay import DELETE, INSERT, UPDATE


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[dict[int, int], list[tuple[int, int | None, int | None, int]]]:
    """Rows before, and changes (kind, old key, new key, new value) that can follow one another.

    Updates may move keys.
    """
    before = {key: 1000 + key for key in draw(st.sets(st.integers(0, 6)))}
    rows, changes = dict(before), []
    for value in range(draw(st.integers(1, 25))):
        free = sorted(set(range(7)) - set(rows))
        kind = draw(st.sampled_from([INSERT] * bool(free) + [UPDATE, DELETE] * bool(rows)))
        old = draw(st.sampled_from(sorted(rows))) if kind != INSERT else None
        new = None
        if kind == INSERT:
            new = draw(st.sampled_from(free))
        elif kind == UPDATE:
            new = draw(st.sampled_from([old, *free]))
        if old is not None:
            del rows[old]
        if new is not None:
            rows[new] = value
        changes.append((kind, old, new, value))
    return before, changes


@given(histories(), st.sampled_from([0, 64]))
def test_deletes_then_writes_leave_what_all_changes_would(case: tuple, few: int) -> None:
    """`few`: so many changes are gone through one by one."""
    before, changes = case
    rows, old_images, new_images, want = dict(before), [], [], dict(before)
    for kind, old, new, value in changes:
        if kind != INSERT:
            old_images.append((old, want.pop(old)))
        if kind != DELETE:
            new_images.append((new, value))
            want[new] = value
    kinds = np.array([c[0] for c in changes], np.int8)
    old_keys, new_keys = (
        np.array([k for k, _ in old_images], np.int64),
        np.array([k for k, _ in new_images], np.int64),
    )
    with mock.patch("sluice.etl.changes.write_plans.net_effect._MAX_SMALL_CHANGES", few):
        effect = net_effect(kinds, old_keys, new_keys)
    for at in effect.deleted:
        assert rows.pop(old_images[at][0]) == old_images[at][1], (
            "the row that is deleted is the one that was there"
        )
    for at in effect.inserted:
        assert new_images[at][0] not in rows
        rows[new_images[at][0]] = new_images[at][1]
    for old, new in zip(effect.updated_old, effect.updated_new):
        assert rows[old_images[old][0]] == old_images[old][1]
        rows[new_images[new][0]] = new_images[new][1]
    assert rows == want


@pytest.mark.parametrize(
    ("kinds", "change", "text"),
    [
        ([INSERT, INSERT], 1, "exists"),
        ([DELETE, DELETE], 1, "doesn't exist"),
        ([DELETE, UPDATE], 1, "doesn't exist"),
        ([UPDATE, UPDATE, INSERT], 2, "exists"),
    ],
)
def test_changes_that_contradict_each_other_are_an_error(
    kinds: list[int], change: int, text: str
) -> None:
    old, new = [7 for k in kinds if k != INSERT], [7 for k in kinds if k != DELETE]
    with pytest.raises(InconsistentHistory, match=text) as caught:
        net_effect(np.array(kinds, np.int8), np.array(old, np.int64), np.array(new, np.int64))
    assert caught.value.change == change


def test_keys_are_equal_where_every_column_is_equal_byte_for_byte() -> None:
    old = [
        pa.array(["a", "A", "a ", "b--c", None, "x"], pa.large_string()),
        pa.array([1, 1, 1, 2, 3, 2**63], pa.uint64()),
    ]
    new = [
        pa.array(["a", "b", "x", None], pa.large_string()),
        pa.array([1, 2, 2**63, 3], pa.uint64()),
    ]
    old_codes, new_codes = key_codes(old, new)
    assert len(set(old_codes)) == 6
    assert [list(old_codes).index(code) if code in old_codes else None for code in new_codes] == [
        0,
        None,
        5,
        4,
    ]


def test_unsigned_keys_above_two_to_the_63_stay_apart() -> None:
    old, new = key_codes(
        [pa.array([2**64 - 1, 2**63], pa.uint64())], [pa.array([2**63 - 1], pa.uint64())]
    )
    assert len({*old, *new}) == 3


def test_rows_that_end_as_they_began_are_found_nulls_included() -> None:
    old = [pa.array([1, None, 3, None]), pa.array(["a", "b", None, None])]
    new = [pa.array([1, None, 3, None]), pa.array(["a", "x", None, "y"])]
    every = np.arange(4)
    assert unchanged_rows(old, new, every, every).tolist() == [True, False, True, False]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_where_all_values_are_the_key_numbers_are_all_that_counts(
    old: list[int], new: list[int]
) -> None:
    effect = multiset_effect(np.array(old, np.int64), np.array(new, np.int64))
    before = Counter({value: old.count(value) for value in range(4)})
    after = (
        before - Counter(old[i] for i in effect.deleted) + Counter(new[i] for i in effect.inserted)
    )
    assert after == before - Counter(old) + Counter(new)
    assert not {old[i] for i in effect.deleted} & {new[i] for i in effect.inserted}
