"""Where changes of very many tables are cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.planning._transaction_cuts import split_points


def cut(transactions: list[list[int]], most: int) -> list[list[list[int]]]:
    """Transactions, each the ids of the tables that it changes, in the pieces that they are cut
    into.
    """
    ids = np.array([table for each in transactions for table in each], np.int64)
    commit_ts = np.array([10 * n for n, each in enumerate(transactions) for _ in each], np.int64)
    pieces = [
        (ids[a:b], commit_ts[a:b])
        for a, b in _between(split_points(ids, commit_ts, most), len(ids))
    ]
    return [[own[ts == one].tolist() for one in np.unique(ts)] for own, ts in pieces]


def _between(places: list[int], end: int) -> list[tuple[int, int]]:
    return list(zip([0, *places], [*places, end], strict=True))


@given(
    st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=30), min_size=1, max_size=60),
    st.integers(1, 100),
)
def test_transactions_stay_whole_in_order_and_few_tables_are_together(
    transactions: list[list[int]], most: int
) -> None:
    pieces = cut(transactions, most)
    assert [each for piece in pieces for each in piece] == transactions
    if len(pieces) > 1:
        for piece in pieces:
            assert len(piece) == 1 or len({table for each in piece for table in each}) <= most


def test_changes_that_are_spread_over_very_many_tables_are_cut() -> None:
    pieces = cut([[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(250)], 100)
    assert [len(piece) for piece in pieces] == [25] * 10


def test_a_landed_backlog_of_very_many_tables_is_cut() -> None:
    pieces = cut([[(7 * n + i) % 10_000 for i in range(4)] for n in range(6_000)], 100)
    assert len(pieces) > 100


def test_a_transaction_of_very_many_tables_is_not_cut() -> None:
    assert cut([list(range(5_000))], 100) == [[list(range(5_000))]]


def test_many_changes_of_each_table_stay_together_as_a_statement_holds_many_of_them() -> None:
    assert len(cut([[n % 1_000] for n in range(25_000)], 100)) == 1


def test_thousands_of_tables_are_cut_as_soon_as_one_transaction_of_them_costs_more() -> None:
    together, apart = (
        len(cut([[(7 * n) % tables] for n in range(25_000)], 100)) for tables in (2_500, 4_000)
    )
    assert (together, apart > 100) == (1, True)


def test_few_tables_stay_together() -> None:
    assert len(cut([[n] for n in range(150)], 100)) == 1


def test_nothing_is_not_cut() -> None:
    assert split_points(np.zeros(0, np.int64), np.zeros(0, np.int64), 100) == []
