"""When a replica had caught up, which commits' lag counts, and where a run looks for rows to damage."""

from embedded.run import stops
from embedded.run_summary import caught_up_at


def test_a_replica_has_caught_up_once_nothing_has_been_waiting_for_longer_than_a_second():
    commits = [(1, 0.0), (2, 1_000.0), (3, 5_000.0), (4, 6_500.0)]
    assert caught_up_at([(1, 5_100), (2, 5_800), (3, 7_000)], commits) == 5_800.0  # 3 waited 0.8 s by then
    assert caught_up_at([(1, 5_100), (2, 6_100), (3, 7_000)], commits) == 7_000.0


def test_a_replica_that_was_behind_to_the_end_had_not_caught_up():
    assert caught_up_at([(1, 5_000), (2, 9_000)], [(1, 0.0), (2, 1_000.0), (3, 5_000.0)]) is None


def test_a_replica_that_has_all_has_caught_up():
    assert caught_up_at([(1, 5_000), (3, 90_000)], [(1, 0.0), (2, 1_000.0), (3, 5_000.0)]) == 90_000.0


def test_rows_to_damage_are_looked_for_after_each_eighth_of_what_is_to_come_and_at_the_end():
    assert stops(range(10, 1001, 10), 200, 1000) == [310, 410, 510, 610, 710, 810, 910, 1000]
    assert stops([10, 20, 30], 15, 30) == [20, 30]
    assert stops([10, 20], 50, 20) == [50]
