"""Windows reach as far as they may, and never past a commit that a pump may still hold."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl import operate
from sluice.etl.landing.extract import PumpRange, read_range
from sluice.etl.landing.planner import (
    CommitsPurgedError,
    MissedCommitError,
    PumpUnavailableError,
    UnreadPumpError,
    UpstreamBehindError,
    WindowPlanner,
)
from sluice.etl.settings import Window as Limits
from sluice.etl.settings import parse_settings
from sluice.relay import RelayLog
from sluice.relay.known_pumps import LANDED, MISSED, KnownPump
from sluice.tidb import PumpReadError
from sluice.tidb.etcd import DRAINED_LABEL
from tests.etl.window_pumps import CLUSTER_ID, WindowPump
from tests.examples import examples
from tests.relay.relaykit import land, window

LIMITS = Limits(max_transactions=10, max_bytes=1000, idle_interval_ms=200)


class World:
    """Pumps, a clock, and the order in which the planner asked for things."""

    def __init__(self):
        self.now = 1001
        self.pumps = []
        self.log = []

    def pump(self, *args, **kwargs):
        self.pumps.append(WindowPump(*args, **kwargs))
        return self.pumps[-1]

    def tso(self):
        self.log.append("tso")
        self.now += 1
        return self.now

    def registry(self):
        self.log.append("registry")
        return [pump.status for pump in self.pumps]


@pytest.fixture
def world():
    made = World()
    yield made
    for pump in made.pumps:
        pump.stop()


@pytest.fixture
def planner(world):
    made = WindowPlanner(CLUSTER_ID, LIMITS, world.tso, world.registry)
    yield made
    made.close()


def test_the_window_ends_at_the_timestamp_that_was_taken_before_the_pumps_were_listed(
    world, planner
):
    first = world.pump("a", [(5, 1, b"x"), (7, 6, b"y")])
    world.pump("b")
    plan = planner.plan(4)
    assert world.log == ["tso", "registry"]
    assert (plan.lo, plan.hi, plan.fresh_ts, plan.transactions, plan.limited) == (
        4,
        1001,
        1001,
        2,
        False,
    )
    assert plan.ranges == (PumpRange(first.status.host, 4, 1001),)
    assert [(request.lo, request.fresh_ts) for request in first.asked] == [(4, 1001)]


def test_pumps_that_counted_are_asked_while_the_registry_answers_and_new_ones_when_it_has(world):
    first = world.pump("a", [(5, 1, b"x")])

    def registry():
        listed = [pump.status for pump in world.pumps]
        while len(first.asked) < world.now - 1001 and world.now > 1002:
            time.sleep(0.01)
        return listed

    planner = WindowPlanner(CLUSTER_ID, LIMITS, world.tso, registry)
    try:
        assert planner.plan(4).transactions == 1
        second = world.pump("b", [(6, 2, b"y")])
        assert planner.plan(4).transactions == 2
        assert [request.fresh_ts for request in first.asked] == [1001, 1002]
        assert [request.fresh_ts for request in second.asked] == [1002]
        first.status = dataclasses.replace(first.status, state="offline")
        assert planner.plan(4).transactions == 1  # the first one's answer doesn't count any longer
        assert len(first.asked) == 3
    finally:
        planner.close()


def test_one_pump_checks_the_timestamp_and_the_others_are_told_so(world, planner):
    first, second, third = (world.pump(name) for name in "abc")
    for _ in range(3):
        planner.plan(4)
    assert [request.ts_is_checked for request in first.asked] == [False] * 3
    for pump in (second, third):
        assert [request.ts_is_checked for request in pump.asked] == [False, True, True]


def test_all_are_asked_again_if_the_pump_that_checks_the_timestamp_counts_no_longer(world, planner):
    first, second = (world.pump(name, [(commit, 1, b"x")]) for commit, name in ((5, "a"), (6, "b")))
    planner.plan(4)
    first.status = dataclasses.replace(first.status, state="offline")
    assert planner.plan(4).transactions == 1
    assert [(request.fresh_ts, request.ts_is_checked) for request in second.asked] == [
        (1001, False),
        (1002, True),
        (1002, False),
    ]
    world.pump("0")  # listed behind, and asked when the registry has answered
    planner.plan(4)
    assert [request.ts_is_checked for request in (*second.asked[3:], *world.pumps[2].asked)] == [
        False,
        False,
    ]


def test_no_window_is_planned_when_an_original_pump_has_come_in_the_place_of_the_one_that_checked(
    world, planner
):
    first, second = world.pump("a"), world.pump("b")
    planner.plan(0)
    first.is_original = True
    assert planner.plan(0, empty_now=True) is None
    assert [request.ts_is_checked for request in second.asked] == [False, True]
    while (plan := planner.plan(0, empty_now=True)) is None:
        time.sleep(0.01)
    assert plan.hi == 500
    assert not any(request.ts_is_checked for request in second.asked[2:])


def test_the_slowest_pump_ends_the_window_and_is_named(world, planner):
    world.pump("a", [(5, 1, b"x")])
    slow = world.pump("b", [(6, 2, b"y")])
    slow.stuck_at = 50
    plan = planner.plan(4)
    assert plan.hi == 50
    assert planner.limiting_pump.startswith("b (127.0.0.1:")
    slow.stuck_at = 3  # it came back with less than it had
    assert planner.plan(4) is None


def test_limits_cut_a_backlog_into_windows_that_miss_nothing(world, planner):
    rows = [(commit, commit - 1, b"p" * 40) for commit in range(10, 400, 3)]
    world.pump("a", rows[::2])
    world.pump("b", rows[1::2])
    lo, seen, windows = 0, [], 0
    while (plan := planner.plan(lo)) is not None and plan.transactions:
        assert plan.lo == lo
        got = [
            batch["commit_ts"][0].as_py()
            for r in plan.ranges
            for batch in read_range(r.host, CLUSTER_ID, r.lo, r.hi)
        ]
        assert len(got) <= 20
        seen += sorted(got)
        lo = plan.hi
        windows += 1
        if not plan.limited:
            break
    assert seen == [row[0] for row in rows] and windows > 5


def test_a_pump_that_cannot_be_reached_stops_planning_and_an_offline_one_is_left_out(
    world, planner
):
    world.pump("a", [(5, 1, b"x")])
    gone = world.pump("b")
    host = gone.status.host
    gone.server.stop(None).wait()
    with pytest.raises(
        PumpUnavailableError, match=rf"pump b at {host}, state online.*every window waits for it"
    ):
        planner.plan(4)
    gone.status = dataclasses.replace(gone.status, state="paused")
    with pytest.raises(PumpUnavailableError, match="state paused"):
        planner.plan(4)
    gone.status = dataclasses.replace(gone.status, state="offline")
    assert planner.plan(4).transactions == 1


@pytest.fixture
def relay(tmp_path):
    return RelayLog.open(f"file://{tmp_path}/relay")


@pytest.fixture
def remembering(world, relay):
    """Planners of one relay log, as processes that follow each other have them."""
    made = []

    def plan(lo):
        made.append(WindowPlanner(CLUSTER_ID, LIMITS, world.tso, world.registry, relay=relay))
        return made[-1].plan(lo, empty_now=True)

    yield plan
    for planner in made:
        planner.close()


def test_a_pump_that_has_counted_and_is_missing_in_the_registry_is_waited_for(
    world, relay, remembering
):
    world.pump("a", [(5, 1, b"x")])
    lost = world.pump("b", [(6, 2, b"y")])
    assert remembering(4).transactions == 2
    world.pumps.remove(lost)
    for _ in range(2):
        with pytest.raises(
            PumpUnavailableError, match=r"pump 'b' at .* has no entry in the registry"
        ) as told:
            remembering(5)
        assert told.value.transient and "sluice pumps forget b" in told.value.hint
    world.pumps.append(lost)
    assert remembering(5).transactions == 1
    world.pumps.remove(lost)
    assert relay.known_pumps.forget("b")
    assert remembering(5).transactions == 0
    assert not relay.known_pumps.forget("b")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("through", [900, 0])
def test_a_pump_that_was_set_offline_with_unread_binlogs_stops_landing_with_its_name_and_the_range(
    world, relay, remembering, through, is_known
):
    lost = world.pump("a", [(5, 1, b"x"), (900, 899, b"z")])
    world.pump("b", [(6, 2, b"y")])
    if is_known:
        lost.stuck_at = 4
        remembering(3)
    lost.status = dataclasses.replace(lost.status, state="offline", max_commit_ts=through)
    if not is_known and not through:
        assert remembering(4).transactions == 1, (
            "it never counted, and says of nothing that it has it"
        )
        return
    range_told = (
        r"commits in \(4, 900\]" if through else "what it took after commit_ts 4 is unknown"
    )
    with pytest.raises(UnreadPumpError, match=f"pump 'a' at .* is offline.*{range_told}") as told:
        remembering(4)
    assert not told.value.transient
    assert all(
        way in told.value.hint
        for way in ("bring its disk back", "sluice pumps forget a", "sluice verify")
    )
    lost.status = dataclasses.replace(lost.status, state="online")
    lost.stuck_at = None
    assert remembering(4).transactions == 3
    lost.status = dataclasses.replace(lost.status, state="offline")
    relay.known_pumps.forget("a")
    world.pumps.remove(lost)  # as the order does
    assert remembering(4).transactions == 1


def test_a_pump_that_has_handed_over_everything_leaves_without_a_word(world, relay, remembering):
    lost = world.pump("a", [(5, 1, b"x")])
    world.pump("b", [(6, 2, b"y")])
    remembering(4)
    left = dataclasses.replace(
        lost.status, state="offline", max_commit_ts=10**6, label={DRAINED_LABEL: "900"}
    )
    lost.status = left
    with pytest.raises(UnreadPumpError, match=r"commits in \(899, "):
        remembering(899)
    assert remembering(900) is not None
    assert set(relay.known_pumps.load().pumps) == {"b"}
    world.pumps.remove(lost)
    assert remembering(901) is not None


def test_a_commit_that_came_after_landing_passed_it_stops_landing_until_an_operator_skips_it(
    world, relay, remembering
):
    pump = world.pump("a")
    relay.begin(window(1, 4))
    land(relay, 4, 20, 6, 9)
    pump.late = [(6, 5), (7, 3)]
    for _ in range(2):
        with pytest.raises(
            MissedCommitError, match=r"pump 'a' received the commit of transaction 3 at 7 "
        ) as told:
            remembering(20)
        assert not told.value.transient and "sluice txn skip 7" in told.value.hint
    assert {ts: late.outcome for ts, late in relay.known_pumps.load().late.items()} == {
        6: LANDED,
        7: MISSED,
    }
    assert "is left out" in operate.skip_transaction(settings_of(relay), 7)
    assert remembering(20) is not None
    pump.late.append((21, 2))
    assert remembering(20) is not None, "it comes with the next window"


def settings_of(relay):
    return parse_settings(
        {
            "upstream": {"pd-urls": "http://127.0.0.1:1"},
            "relay": {"url": relay.url},
            "downstream": {"host": "h"},
        },
        "here",
    )


def test_a_pump_lost_from_the_registry_before_it_counted_stops_landing_until_accepted_by_name(
    world, relay, remembering
):
    world.pump("a")
    relay.begin(window(1, 4))
    land(relay, 4, 20, 6, 9)
    assert remembering(20) is not None
    lost = world.pump("b", [(5, 1, b"x"), (30, 29, b"y")])
    for _ in range(2):
        with pytest.raises(
            MissedCommitError, match=r"pump 'b' was not in the registry .* the first at 5 "
        ) as told:
            remembering(20)
        assert "sluice txn skip 5" in told.value.hint
    assert "b" not in relay.known_pumps.load().pumps
    assert "is left out" in operate.skip_transaction(settings_of(relay), 5)
    assert remembering(20).transactions == 1
    world.pumps.remove(lost)
    relay.known_pumps.forget("b")
    assert remembering(31).transactions == 0
    world.pumps.append(lost)
    assert remembering(31).transactions == 0, "an operator has given up what it holds"


def test_a_new_pump_counts_without_a_word(world, relay, remembering):
    world.pump("a")
    relay.begin(window(1, 4))
    land(relay, 4, 20, 6, 9)
    assert remembering(20) is not None
    world.pump("b", [(30, 29, b"y")])
    assert remembering(20).transactions == 1
    assert set(relay.known_pumps.load().pumps) == {"a", "b"}


@pytest.mark.parametrize(("began", "stops"), [(50, False), (2, True)])
def test_a_late_commit_of_windows_that_are_gone_counts_unless_the_log_began_behind_it(
    world, relay, remembering, began, stops
):
    pump = world.pump("a")
    first = window(began, 60)
    relay.begin(first)
    land(relay, 60, 70)
    relay.storage.remove(first.path)
    pump.late = [(7, 3)]
    if stops:
        with pytest.raises(MissedCommitError):
            remembering(70)
    else:
        assert remembering(70) is not None


def test_an_original_pump_that_was_closing_leaves_when_landing_has_come_as_far_as_its_fakes(
    world, relay, remembering
):
    lost, other = world.pump("a"), world.pump("b")
    known = {
        "a": KnownPump(lost.status.host, "closing", is_original=True),
        "b": KnownPump(other.status.host, "online"),
    }
    relay.known_pumps.change(lambda seen: dataclasses.replace(seen, pumps=known))
    lost.status = dataclasses.replace(lost.status, state="offline", max_commit_ts=10**10)
    with pytest.raises(UnreadPumpError, match="pump 'a'"):
        remembering(400)
    lost.status = dataclasses.replace(lost.status, max_commit_ts=500)
    assert remembering(400) is not None
    assert set(relay.known_pumps.load().pumps) == {"b"}


@pytest.mark.parametrize(
    ("pumps", "what"),
    [([], "no pump in the registry"), (["offline"], "1 pumps in the registry, all offline")],
)
def test_without_pumps_nothing_is_planned(world, planner, pumps, what):
    for state in pumps:
        world.pump("a", state=state)
    with pytest.raises(PumpUnavailableError, match=what):
        planner.plan(4)


def test_commits_that_a_pump_has_purged_are_an_error_that_waiting_does_not_mend(world, planner):
    world.pump("a").purged_through = 50
    with pytest.raises(
        CommitsPurgedError, match=r"pump a at 127.0.0.1:\d+.*through 50.*relay log ends at 4"
    ):
        planner.plan(4)
    assert planner.plan(50, empty_now=True).hi == 1002


def test_a_clock_behind_what_was_landed_is_said(world, planner):
    world.pump("a")
    with pytest.raises(
        UpstreamBehindError, match=r"PD's clock went back: .*timestamps in \(1001, 2000\]"
    ) as told:
        planner.plan(2000)
    assert not told.value.transient, "what is committed until it has caught up would be passed over"


def test_a_wrong_cluster_is_said_by_the_pump(world):
    world.pump("a")
    planner = WindowPlanner(CLUSTER_ID + 1, LIMITS, world.tso, world.registry)
    with pytest.raises(PumpUnavailableError, match="cluster ID are mismatch, 8 vs 7"):
        planner.plan(4)
    planner.close()


def test_idle_pumps_give_an_empty_window_every_interval_only(world, planner, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "sluice.etl.landing.planner.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    world.pump("a")
    planner.plan(4, empty_now=True)
    clock.now += 0.19
    assert planner.plan(4) is None
    clock.now += 0.02
    plan = planner.plan(4)
    assert plan.ranges == () and plan.transactions == 0 and plan.hi == plan.fresh_ts
    assert planner.plan(plan.hi) is None


def test_a_window_that_ends_at_the_fresh_timestamp_leaves_the_next_one_unused(world, planner):
    """PD gives a timestamp once, so no transaction is committed at one of landing's own."""
    world.pump("a")
    assert planner.plan(4, empty_now=True).hi + 1 == world.now


def test_pumps_are_asked_side_by_side(world, planner):
    pumps = [world.pump(str(i)) for i in range(3)]
    for pump in pumps:
        pump.delay.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(planner.plan, 4, empty_now=True)
        deadline = time.monotonic() + 60
        while not all(pump.asked for pump in pumps):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pump in pumps:
            pump.delay.set()
        assert future.result(60).hi == 1001


def test_large_ranges_are_cut_for_spark_without_gap_or_overlap(world):
    big = world.pump("a", [(1000 + i, i, b"p" * 2**20) for i in range(1, 60)])
    world.now = 5000
    planner = WindowPlanner(CLUSTER_ID, Limits(max_bytes=2**30), world.tso, world.registry)
    plan = planner.plan(1000)
    planner.close()
    assert [r.host for r in plan.ranges] == [big.status.host] * 4
    assert plan.ranges[0].lo == 1000 and plan.ranges[-1].hi == plan.hi
    assert all(before.hi == after.lo for before, after in zip(plan.ranges, plan.ranges[1:]))


def test_the_source_reads_a_range_and_nothing_else(world):
    pump = world.pump("a", [(5, 1, b"x"), (7, 6, b"y"), (9, 8, b"z")])
    assert [batch.to_pylist() for batch in read_range(pump.status.host, CLUSTER_ID, 5, 9)] == [
        [{"commit_ts": 7, "start_ts": 6, "payload": b"y"}],
        [{"commit_ts": 9, "start_ts": 8, "payload": b"z"}],
    ]
    assert list(read_range(pump.status.host, CLUSTER_ID, 9, 20)) == []


def test_a_pump_that_sends_what_was_not_asked_for_is_refused(world):
    pump = world.pump("a", [(5, 1, b"x"), (5, 1, b"x")])
    with pytest.raises(PumpReadError, match=r"asked for \(4, 9\], it sent commits 5 to 5 after 5"):
        list(read_range(pump.status.host, CLUSTER_ID, 4, 9))
    with pytest.raises(PumpReadError, match=f"pump 127.0.0.1:{pump.port}"):
        pump.stop()
        list(read_range(pump.status.host, CLUSTER_ID, 4, 9))


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(5, 9), st.integers(1, 9)), unique=True).map(sorted),
    st.lists(st.integers(0, 12), max_size=6),
)
def test_a_share_is_read_on_where_its_pump_ended_the_stream(world, keys, cuts):
    """Each transaction once and in order, also of one commit ts; or an error, and a beginning."""
    if not world.pumps:
        world.pump("a").share = "1/1"
    (pump,) = world.pumps
    pump.rows, pump.cuts = [(*key, b"%d" % n * 3000) for n, key in enumerate(keys)], list(cuts)
    read = []
    try:
        for batch in read_range(pump.status.host, CLUSTER_ID, 4, 9, share="1/1"):
            read += list(zip(*(column.to_pylist() for column in batch.columns)))
    except PumpReadError as error:
        assert "others wait" in str(error)
    else:
        assert len(read) == len(keys)
    assert read == pump.rows[: len(read)]


def test_a_pump_of_a_share_may_end_every_stream_that_has_brought_something(world):
    pump = world.pump("a", [(5, n, b"x" * 200_000) for n in range(1, 9)])
    pump.share, pump.cuts = "1/1", [3, 5, 7, 7]
    with pytest.raises(PumpReadError, match="others wait"):
        list(read_range(pump.status.host, CLUSTER_ID, 4, 9, share="1/1"))
    pump.cuts = [3, 5, 7]
    found = list(read_range(pump.status.host, CLUSTER_ID, 4, 9, share="1/1"))
    assert [batch["start_ts"].to_pylist() for batch in found] == [[n] for n in range(1, 9)]


def test_two_pumps_at_one_address_are_not_taken_for_both(world, planner):
    """One of them answers for the other, whose commits would be passed over."""
    first, second = world.pump("a", [(5, 1, b"x")]), world.pump("b")
    gone = second.status
    second.status = dataclasses.replace(first.status, node_id="b")
    with pytest.raises(
        PumpUnavailableError,
        match=rf"pumps a \(online\) and b \(online\) are both registered at {first.status.host}",
    ):
        planner.plan(4)
    second.status = dataclasses.replace(second.status, state="offline")
    assert planner.plan(4).transactions == 1
    second.status = gone
