"""When a replica had caught up, which commits' lag counts, where a run looks for rows to damage,
and what it says of an accident.
"""

import pytest

from sluice.devstack.accident_demo import Accident
from sluice.devstack.run import damage_points
from sluice.devstack.run_summary import RunSummary, caught_up_at


def test_a_replica_has_caught_up_once_nothing_has_been_waiting_for_longer_than_a_second():
    commits = [(1, 0.0), (2, 1_000.0), (3, 5_000.0), (4, 6_500.0)]
    # 3 waited 0.8 s by then
    assert caught_up_at([(1, 5_100), (2, 5_800), (3, 7_000)], commits) == 5_800.0
    assert caught_up_at([(1, 5_100), (2, 6_100), (3, 7_000)], commits) == 7_000.0


def test_a_replica_that_was_behind_to_the_end_had_not_caught_up():
    assert caught_up_at([(1, 5_000), (2, 9_000)], [(1, 0.0), (2, 1_000.0), (3, 5_000.0)]) is None


def test_a_replica_that_has_all_has_caught_up():
    assert (
        caught_up_at([(1, 5_000), (3, 90_000)], [(1, 0.0), (2, 1_000.0), (3, 5_000.0)]) == 90_000.0
    )


def test_rows_to_damage_are_looked_for_after_each_eighth_of_what_is_to_come_and_at_the_end():
    assert damage_points(range(10, 1001, 10), 200, 1000) == [
        310,
        410,
        510,
        610,
        710,
        810,
        910,
        1000,
    ]
    assert damage_points([10, 20, 30], 15, 30) == [20, 30]
    assert damage_points([10, 20], 50, 20) == [50]


ACCIDENT = Accident("bank.ledger", 12_345, 470_614_800_453_074_946)


def test_a_restored_table_is_shown_beside_the_one_that_an_accident_emptied():
    summary = RunSummary("shop")
    summary.recover(ACCIDENT, ACCIDENT.commit_ts, 9.4, (12_345, 0))
    assert (
        summary.accident
        == "at 2026-11-21 09:23:12.451 UTC DELETE FROM bank.ledger, its WHERE forgotten: all 12,345"
        " rows gone, in TiDB and in the replica"
    )
    assert (
        summary.restored
        == "bank_restored.ledger: 12,345 rows, as right before it, in 9 s; bank.ledger: 0 rows"
    )
    assert summary.differences == []


@pytest.mark.parametrize(
    ("found", "rows"),
    [(ACCIDENT.commit_ts, (12_344, 0)), (ACCIDENT.commit_ts, (12_345, 1)), (1 << 60, (12_345, 0))],
)
def test_a_restore_that_is_not_what_was_there_is_a_difference(found, rows):
    summary = RunSummary("shop")
    summary.recover(ACCIDENT, found, 9.4, rows)
    assert len(summary.differences) == 1
