"""What the promised range needs of an archive, by hand-made cases.

`test_retention_property` reads real ones.
"""

import pytest

from sluice.etl.history.retain.policy import ArchiveInventory, RetentionPolicy, decide_retention
from sluice.etl.history.retain.table_events import ReadStart, TableEvent, restorable_since
from sluice.tidb import tso

DAY = 86_400_000


def day(n: float) -> int:
    return tso.compose(1_795_000_000_000 + int(n * DAY))


def keep(log: float = 0, snapshots: float = 0, unwanted: str = "") -> RetentionPolicy:
    return RetentionPolicy(int(log * DAY), int(snapshots * DAY), lambda name: name != unwanted)


def snapshot(n: float, *ids: int) -> ReadStart:
    return ReadStart(day(n), {i: f"s.t{i}" for i in ids}, f"b{n:g}")


def facts(lo: float, hi: float, snapshots=(), turns=()) -> ArchiveInventory:
    return ArchiveInventory(day(lo), day(hi), tuple(snapshots), tuple(turns))


def test_without_a_time_to_keep_nothing_goes():
    found = decide_retention(facts(0, 100, [snapshot(1, 7), snapshot(50, 7)]), keep(), day(100))
    assert (found.forget, found.before_ts, found.promised_ts) == ((), 0, day(0))


def test_the_youngest_snapshot_before_the_promised_range_is_kept_and_the_chain_from_it():
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7), snapshot(15, 7), snapshot(25, 7)]), keep(log=10), day(30)
    )
    assert found.forget == ("b1",)
    assert (found.before_ts, found.promised_ts) == (day(15), day(20))
    assert found.depends_on == ("b15",)


def test_a_snapshot_lacking_a_table_does_not_take_the_place_of_an_older_one_that_has_it():
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7, 8), snapshot(15, 7)]), keep(log=10), day(30)
    )
    assert found.forget == ()
    assert found.before_ts == day(1)
    assert "s.t8" in found.held_by


def test_a_table_that_settings_leave_out_holds_nothing():
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7, 8), snapshot(15, 7)]), keep(log=10, unwanted="s.t8"), day(30)
    )
    assert (found.forget, found.before_ts) == (("b1",), day(15))


def test_a_table_that_was_created_in_the_chain_needs_it_from_there_until_a_snapshot_holds_it():
    made = TableEvent(day(5), 8, "s.t8", begins=True)
    snapshots = [snapshot(1, 7), snapshot(15, 7)]
    assert (
        decide_retention(facts(0, 30, snapshots, [made]), keep(log=10), day(30)).before_ts
        == day(5) - 1
    )
    snapshots[1] = snapshot(15, 7, 8)
    assert decide_retention(
        facts(0, 30, snapshots, [made]), keep(log=10), day(30)
    ).before_ts == day(15)


def test_a_table_that_came_to_be_by_moving_rows_needs_the_snapshot_of_where_they_came_from():
    turns = [TableEvent(day(12), 7, None), TableEvent(day(12), 9, "s.t7", takes=(7,))]
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7, 8), snapshot(15, 8)], turns), keep(log=10), day(30)
    )
    assert (found.forget, found.before_ts) == ((), day(1))


def test_a_dropped_table_that_comes_back_in_the_promised_range_needs_its_snapshot():
    turns = [TableEvent(day(12), 7, None), TableEvent(day(22), 7, "s.t7", takes=(7,))]
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7, 8), snapshot(15, 8)], turns), keep(log=10), day(30)
    )
    assert (found.forget, found.before_ts) == ((), day(1))


def test_a_dropped_table_needs_nothing_once_the_promised_range_has_passed_it():
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7, 8), snapshot(15, 8)], [TableEvent(day(12), 7, None)]),
        keep(log=10),
        day(30),
    )
    assert (found.forget, found.before_ts) == (("b1",), day(15))


def test_of_the_snapshots_inside_the_promised_range_one_a_span_stays():
    snapshots = [snapshot(n, 7) for n in range(30)]
    found = decide_retention(facts(0, 29.5, snapshots), keep(log=20, snapshots=7), day(29.5))
    left = {one.id for one in snapshots} - set(found.forget)
    assert {f"b{n}" for n in range(23, 30)} <= left, "the youngest stay all"
    assert len(left) <= 7 + 3
    assert found.before_ts == day(9)
    assert set(found.depends_on) <= left


def test_a_snapshot_that_alone_holds_a_table_is_not_thinned_out():
    snapshots = [snapshot(0, 7), snapshot(8, 7), snapshot(9, 7, 8), snapshot(10, 7)]
    found = decide_retention(facts(0, 40, snapshots), keep(log=38, snapshots=7), day(40))
    assert "b9" not in found.forget
    assert "b10" in found.forget


@pytest.mark.parametrize("clock", [25.0, 30.0, 4000.0])
def test_a_clock_that_is_wrong_makes_nothing_go_early(clock):
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7), snapshot(15, 7)]), keep(log=10), day(clock)
    )
    assert found.promised_ts == day(min(clock, 30) - 10)
    assert found.before_ts <= day(15)


def test_what_somebody_reads_stays():
    found = decide_retention(
        facts(0, 30, [snapshot(1, 7), snapshot(15, 7)]),
        keep(log=10),
        day(30),
        held=["b1"],
        held_ts=day(1),
    )
    assert (found.forget, found.before_ts) == ((), day(1))
    assert found.held_by == "a reader of it"


def test_a_snapshot_before_the_chain_stays_for_the_time_to_keep():
    snapshots = [snapshot(2, 7), snapshot(6, 7)]
    assert decide_retention(facts(4, 8, snapshots), keep(log=10), day(8)).forget == ()
    assert decide_retention(facts(4, 18, snapshots), keep(log=10), day(18)).forget == ("b2",)


def test_since_when_each_table_can_be_had():
    turns = [TableEvent(day(5), 8, "s.t8", begins=True), TableEvent(day(6), 7, "s.new")]
    assert restorable_since(snapshot(1, 7), turns, day(9)) == {
        7: (day(1), "s.new"),
        8: (day(5), "s.t8"),
    }
    assert restorable_since(ReadStart(day(0)), turns, day(9)) == {8: (day(5), "s.t8")}
