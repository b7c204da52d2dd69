"""Landing reads one of the pumps that capture a cluster, and another one when that one fails."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing._captured_source import CapturedAnswer, CapturedShares, CapturedSource
from sluice.etl.landing._pump_errors import (
    CommitsPurgedError,
    PumpUnavailableError,
    ReplicaDiffersError,
)
from sluice.etl.landing.extract import PumpRange
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.settings import Window as Limits
from sluice.relay import RelayLog
from sluice.tidb import NodeStatus, WindowBounds, tso
from sluice.tidb.etcd import CAPTURED_LABEL, SHARE_LABEL
from tests.etl.window_pumps import CLUSTER_ID, WindowPump
from tests.examples import examples
from tests.relay.relaykit import land, window

LIMITS = Limits(max_transactions=10, max_bytes=1000, idle_interval_ms=0)
NOW = tso.span(10**9)
LONG = tso.span(60_000)


class PatientPlanner(WindowPlanner):
    """Plans again, as landing does, where a loaded machine couldn't connect in time."""

    def plan(self, lo, *, empty_now=False):
        for attempts in range(20, 0, -1):
            try:
                return super().plan(lo, empty_now=empty_now)
            except PumpUnavailableError as error:
                if "timed out" not in str(error) or attempts == 1:
                    raise
        raise AssertionError


class World:
    """Pumps with binlogs and pumps that capture, a clock, and a relay log."""

    def __init__(self, folder):
        self.now, self.pumps, self.planners = NOW, [], []
        self.relay = RelayLog.open(f"file://{folder}/relay")

    def binlogs(self, node_id, rows=()):
        self.pumps.append(WindowPump(node_id, rows))
        return self.pumps[-1]

    def captures(self, node_id, rows=(), *, begin=0, share=""):
        made = self.binlogs(node_id, rows)
        made.purged_through, made.share = begin, share
        label = {CAPTURED_LABEL: str(CLUSTER_ID)} | ({SHARE_LABEL: share} if share else {})
        made.status = dataclasses.replace(made.status, label=label)
        return made

    def tso(self):
        self.now += 1
        return self.now

    def planner(self):
        made = PatientPlanner(
            CLUSTER_ID,
            LIMITS,
            self.tso,
            lambda: [pump.status for pump in self.pumps],
            relay=self.relay,
        )
        self.planners.append(made)
        return made

    def close(self):
        for planner in self.planners:
            planner.close()
        for pump in self.pumps:
            pump.stop()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A loaded machine answers late."""
    monkeypatch.setattr("sluice.etl.landing._captured_source._ANSWER_TIMEOUT_S", 30.0)
    return monkeypatch


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def hosts(plan):
    return {each.host for each in plan.ranges}


def test_one_of_two_replicas_is_read_and_the_other_takes_over_when_it_is_killed(world):
    rows = [(5, 1, b"x"), (7, 6, b"y")]
    first, second = world.captures("a", rows), world.captures("b", rows)
    planner = world.planner()
    plan = planner.plan(4)
    assert (plan.transactions, plan.hi) == (2, NOW)
    (read,) = hosts(plan)
    killed, other = (first, second) if read == first.status.host else (second, first)
    asked = len(other.asked)
    assert hosts(planner.plan(4)) == {killed.status.host}
    assert len(other.asked) == asked, "the other one is asked only if it is needed"
    killed.stop()
    plan = planner.plan(4)
    assert hosts(plan) == {other.status.host} and plan.transactions == 2


@pytest.mark.parametrize(
    "theirs",
    [
        [(5, 1, b"x")],
        [(5, 1, b"x"), (6, 2, b"more"), (7, 6, b"y")],
    ],
    ids=["one is missing", "one too many"],
)
@pytest.mark.parametrize("share", ["", "1/1"])
def test_landing_stops_where_it_goes_over_to_a_replica_that_has_other_changes(world, theirs, share):
    """Also in front of what is landed, and again after each try, until the pump is offline."""
    first = world.captures("a", [(5, 1, b"x"), (7, 6, b"y")], share=share)
    planner = world.planner()
    landed = planner.plan(4).hi
    assert not planner.plan(landed, empty_now=True).transactions
    second = world.captures("b", theirs, share=share)
    first.stop()
    for lo in (4, landed):
        with pytest.raises(ReplicaDiffersError, match=r"pump b .* differs from pump a") as told:
            planner.plan(lo)
        assert not told.value.transient and "(4, " in str(told.value)
    second.status = dataclasses.replace(second.status, state="offline")
    world.captures("c", [(5, 1, b"x"), (7, 6, b"y"), (NOW * 2, 9, b"z")], share=share)
    assert planner.plan(landed, empty_now=True).hi > landed


def test_contents_are_compared_where_the_pump_sent_them_with_its_answer(world):
    first = world.captures("a", [(5, 1, b"x"), (7, 6, b"y")])
    first.sends_windows = True
    planner = world.planner()
    planner.plan(4)
    world.captures("b", [(5, 1, b"x"), (7, 6, b"z")])
    first.stop()
    with pytest.raises(ReplicaDiffersError, match="other contents of its 2 transactions"):
        planner.plan(4)
    world.pumps.pop().stop()
    world.captures("c", first.rows)
    assert planner.plan(4).transactions == 2


@pytest.mark.parametrize("shares", [[""], ["1/2", "2/2"]], ids=["all tables", "two shares"])
@pytest.mark.parametrize(
    "theirs",
    [[(5, 1, b"x")], [(5, 1, b"x"), (7, 6, b"z")]],
    ids=["one is missing", "other contents"],
)
def test_landing_that_began_again_stops_at_a_replica_that_has_other_changes(world, theirs, shares):
    """The pump that was read and landing have died together. A person decides which was wrong."""
    rows = [(5, 1, b"x"), (7, 6, b"y")]
    first = world.captures("a", rows, share=shares[-1])
    for share in shares[:-1]:
        world.captures(f"of {share}", rows, share=share)
    landed = world.planner().plan(4).hi
    second = world.captures("b", theirs, share=shares[-1])
    first.stop()
    for _ in range(2):
        planner = world.planner()
        with pytest.raises(ReplicaDiffersError, match=r"pump b .* differs from pump a") as told:
            planner.plan(landed, empty_now=True)
        assert not told.value.transient and "sluice pumps forget a" in told.value.hint
    second.status = dataclasses.replace(second.status, state="offline")
    world.captures("c", rows, share=shares[-1])
    landed = world.planner().plan(landed, empty_now=True).hi
    second.status = dataclasses.replace(second.status, state="online")
    world.pumps.pop().stop()
    with pytest.raises(ReplicaDiffersError):
        world.planner().plan(landed, empty_now=True)
    first.status = dataclasses.replace(first.status, state="offline")
    assert world.relay.known_pumps.forget("a")
    assert world.planner().plan(landed, empty_now=True).hi > landed


def test_what_landing_found_to_differ_stops_it_also_when_it_begins_again(world):
    """It was in a range that isn't the one that is kept now and then."""
    first = world.captures("a", [(5, 1, b"x"), (7, 6, b"y"), (NOW + 100, NOW + 99, b"z")])
    first.sends_windows = True
    planner = world.planner()
    landed = planner.plan(4).hi
    world.now = NOW + 200
    assert planner.plan(landed).transactions == 1
    world.captures("b", [(5, 1, b"x"), (7, 6, b"y"), (NOW + 100, NOW + 99, b"other")])
    first.stop()
    for planner in (planner, world.planner()):
        with pytest.raises(ReplicaDiffersError, match="other contents of its 1 transactions"):
            planner.plan(landed)


def test_landing_that_begins_again_stays_with_the_pump_that_was_read(world):
    rows = [(5, 1, b"x")]
    pumps = {each.status.host: each for each in (world.captures(name, rows) for name in "ab")}
    (read,) = hosts(world.planner().plan(4))
    other = next(pump for host, pump in pumps.items() if host != read)
    asked = len(other.asked)
    assert hosts(world.planner().plan(4)) == {read}
    assert len(other.asked) == asked


def test_a_replica_that_cannot_read_what_is_landed_already_is_read_from_there_on(world):
    first = world.captures("a", [(5, 1, b"x")])
    planner = world.planner()
    landed = planner.plan(4).hi
    second = world.captures("b", [(5, 1, b"x")])
    second.is_damaged = True
    first.stop()
    assert planner.plan(landed, empty_now=True).hi > landed


def test_a_replica_is_compared_once_it_has_come_as_far_as_the_one_before(world):
    first = world.captures("a", [(5, 1, b"x"), (7, 6, b"y")])
    planner = world.planner()
    first.stuck_at = NOW - 9
    landed = planner.plan(4).hi
    second = world.captures("b", [(5, 1, b"x")])
    second.stuck_at = NOW - 10
    first.stop()
    assert planner.plan(landed) is None
    second.stuck_at = NOW - 9
    with pytest.raises(ReplicaDiffersError):
        planner.plan(landed)


def test_a_replica_that_hangs_or_stalls_is_left_and_not_returned_to_without_need(world, patience):
    rows = [(5, 1, b"x")]
    pumps = {name: world.captures(name, rows) for name in "ab"}
    planner = world.planner()
    by_host = {pump.status.host: pump for pump in pumps.values()}
    (read,) = hosts(planner.plan(4))
    by_host[read].delay.clear()
    patience.undo()
    (other,) = hosts(planner.plan(4))
    assert other != read
    by_host[read].delay.set()
    assert hosts(planner.plan(4)) == {other}
    by_host[other].stuck_at = NOW - LONG
    assert hosts(planner.plan(4)) == {read}
    assert planner.limiting_pump == ""
    by_host[read].stuck_at = NOW - LONG
    plan = planner.plan(4)
    assert (hosts(plan), plan.hi) == ({read}, NOW - LONG)
    assert planner.limiting_pump.startswith(by_host[read].status.node_id)


def test_a_replica_that_began_above_what_is_landed_is_not_read_until_landing_is_there(world):
    whole = world.captures("z", [(5, 1, b"x"), (70, 69, b"y")])
    later = world.captures("a", [(70, 69, b"y")], begin=50)
    planner = world.planner()
    assert hosts(planner.plan(4)) == {whole.status.host}
    host = whole.status.host
    whole.stop()
    with pytest.raises(PumpUnavailableError, match="none of the 2 pumps that capture") as told:
        planner.plan(4)
    assert told.value.transient and host in str(told.value)
    assert hosts(planner.plan(50)) == {later.status.host}
    whole.status = dataclasses.replace(whole.status, state="offline")
    with pytest.raises(CommitsPurgedError, match="through 50 has been purged"):
        planner.plan(4)


def test_what_a_replica_holds_of_landed_commits_is_neither_missed_nor_landed_again(world):
    world.relay.begin(window(1, 4))
    land(world.relay, 4, 20, 6, 9)
    world.captures("a", [(8, 2, b"not landed"), (30, 29, b"y")])
    planner = world.planner()
    assert planner.plan(20, empty_now=True).transactions == 1
    world.captures("b", [(8, 2, b"not landed"), (30, 29, b"y")])
    assert planner.plan(20, empty_now=True).transactions == 1


def test_a_replica_that_is_missing_or_offline_is_not_waited_for(world):
    rows = [(5, 1, b"x")]
    first, second = world.captures("a", rows), world.captures("b", rows)
    assert world.planner().plan(4).transactions == 1
    known = world.relay.known_pumps.load()
    assert (set(known.pumps), known.is_captured) == ({"a", "b"}, True)
    world.pumps.remove(first)
    assert world.planner().plan(4).transactions == 1
    world.pumps.append(first)
    second.status = dataclasses.replace(second.status, state="offline", max_commit_ts=NOW * 2)
    assert hosts(world.planner().plan(4)) == {first.status.host}


def test_binlogs_are_read_until_a_replica_has_what_comes_next_and_never_again(world, patience):
    patience.setattr("sluice.etl.landing.planner._SWITCH_CHECK_INTERVAL_S", 0.0)
    rows = [(5, 1, b"x"), (70, 69, b"y"), (90, 89, b"z")]
    old = world.binlogs("binlogs", rows)
    captured = world.captures("captures", rows[1:], begin=50)
    planner = world.planner()
    assert hosts(planner.plan(4)) == {old.status.host}
    captured.stuck_at = 80
    assert hosts(planner.plan(50)) == {old.status.host}, "it is far behind the present"
    captured.stuck_at = None
    world.relay.begin(window(1, 49))
    assert hosts(planner.plan(50)) == {old.status.host}, "the window in front isn't landed"
    land(world.relay, 49, 50)
    plan = planner.plan(50)
    assert (plan.ranges, plan.transactions) == (
        (PumpRange(captured.status.host, 50, plan.hi),),
        2,
    )
    old.stop()
    assert hosts(planner.plan(50)) == {captured.status.host}
    port = captured.status.host
    captured.stop()
    for each in (planner, world.planner()):
        with pytest.raises(PumpUnavailableError, match=port):
            each.plan(50)
    world.pumps.remove(captured)
    world.relay.known_pumps.forget("captures")
    world.binlogs("binlogs-2", rows)
    for each in (planner, world.planner()):
        with pytest.raises(PumpUnavailableError, match="no pump captures the cluster now"):
            each.plan(50)


def test_binlogs_of_pumps_that_left_are_not_wanted_if_a_replica_has_what_comes_next(world):
    old = world.binlogs("binlogs", [(5, 1, b"x")])
    assert world.planner().plan(4).transactions == 1
    old.status = dataclasses.replace(old.status, state="offline", max_commit_ts=NOW)
    captured = world.captures("captures", [(5, 1, b"x"), (6, 2, b"y")], begin=3)
    captured.stuck_at = 100
    plan = world.planner().plan(4)
    assert (hosts(plan), plan.hi, plan.transactions) == ({captured.status.host}, 100, 2)
    assert set(world.relay.known_pumps.load().pumps) == {"captures"}


def test_the_document_of_pumps_with_binlogs_is_read_by_older_versions(world):
    world.binlogs("a", [(5, 1, b"x")])
    world.planner().plan(4)
    assert b"is_captured" not in world.relay.known_pumps.load().to_bytes()


def test_a_window_comes_from_one_pump_of_each_share_and_ends_where_the_slowest_is(world):
    row = (5, 1, b"x")
    first, second = world.captures("a", [row], share="1/2"), world.captures("b", [], share="2/2")
    replica = world.captures("c", [(7, 6, b"y")], share="2/2")
    second.rows = replica.rows
    planner = world.planner()
    plan = planner.plan(4)
    assert (plan.hi, plan.transactions, len(plan.ranges)) == (NOW, 2, 1)
    (joined,) = plan.ranges
    (other,) = joined.others
    assert (joined.host, joined.share, other.share) == (first.status.host, "1/2", "2/2")
    read, idle = (second, replica) if other.host == second.status.host else (replica, second)
    assert other.host == read.status.host
    first.stuck_at = NOW - LONG
    plan = planner.plan(4)
    assert plan.hi == NOW - LONG and planner.limiting_pump.startswith("a ")
    first.stuck_at = None
    read.stop()
    (joined,) = planner.plan(4).ranges
    assert [each.host for each in joined.others] == [idle.status.host]
    idle.stop()
    with pytest.raises(PumpUnavailableError) as told:
        planner.plan(4)
    assert told.value.transient
    world.pumps = [first]
    with pytest.raises(PumpUnavailableError, match="no pump captures share 2/2"):
        planner.plan(4)


def test_a_large_window_of_shares_is_cut_alike_in_all_of_them(world, patience):
    patience.setattr("sluice.etl.landing.planner._SPLIT_BYTES", 20)
    for number in (1, 2, 3):
        rows = [(ts, ts - number, b"x" * 10) for ts in range(10 + number, 50, 10)]
        world.captures(f"pump-{number}", rows, share=f"{number}/3").stuck_at = 100
    plan = world.planner().plan(4)
    assert (len(plan.ranges), plan.bytes, plan.ranges[-1].hi) == (4, 120, 100)
    for each in plan.ranges:
        assert [other.share for other in each.others] == ["2/3", "3/3"]
        assert {(other.lo, other.hi) for other in each.others} == {(each.lo, each.hi)}


def test_pumps_of_all_tables_are_read_until_all_shares_have_what_comes_next(world):
    rows = [(5, 1, b"x"), (70, 69, b"y")]
    whole = world.captures("whole", rows)
    planner = world.planner()
    assert hosts(planner.plan(4)) == {whole.status.host}
    shares = [world.captures(f"{n}", rows[1:], begin=50, share=f"{n}/2") for n in (1, 2)]
    assert hosts(planner.plan(4)) == {whole.status.host}
    assert hosts(planner.plan(60)) == {whole.status.host}, "none is read without need"
    whole.status = dataclasses.replace(whole.status, state="offline")
    shares[1].purged_through = 65
    with pytest.raises(CommitsPurgedError, match="through 65 has been purged"):
        planner.plan(60)
    (joined,) = planner.plan(65).ranges
    assert {joined.host, *(each.host for each in joined.others)} == {
        pump.status.host for pump in shares
    }


class Replica:
    """A pump in memory: complete in (begin, frontier] of its share, or not there.

    The upstream commits at every leap; the pump lacks every so many, if `lacks`.
    """

    def __init__(self, name, begin, frontier, *, answers, share="", lacks=0):
        label = {CAPTURED_LABEL: "7"} | ({SHARE_LABEL: share} if share else {})
        self.status = NodeStatus(name, f"{name}:1", label=label)
        self.begin, self.frontier, self.answers = begin, frontier, answers
        self.lacks = lacks

    def count(self, lo, hi):
        moments = range(lo // LEAP + 1, hi // LEAP + 1)
        return sum(1 for moment in moments if not self.lacks or moment % self.lacks)

    def digest(self, lo, hi):
        return None if lo < self.begin else (self.count(lo, hi), b"")


class Asked:
    """What PumpBounds returns for a request to a replica."""

    def __init__(self, replica, lo):
        self._replica, self._lo = replica, lo

    def is_done(self, timeout_s):
        return self._replica.answers != "hangs"

    def failure(self):
        if self._replica.answers == "dead":
            return PumpUnavailableError("dead")
        if self._replica.begin > self._lo:
            return CommitsPurgedError("begun later")
        return None

    def answer(self):
        frontier = self._replica.frontier
        hi = max(frontier, self._lo)
        return WindowBounds(frontier, hi, self._replica.count(self._lo, hi), 0)


LEAP = tso.span(1_000)
replicas = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 20),
        st.integers(0, 20),
        st.sampled_from(["yes", "yes", "yes", "dead", "hangs"]),
    ),
    max_size=4,
    unique_by=lambda each: each[0],
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(replicas, min_size=1, max_size=12))
def test_whatever_replicas_do_landing_is_complete_and_moves_on_while_one_of_them_does(steps):
    """A plan at each step; what is landed is what the replica that was read is complete in.

    Pump "d" lacks commits. A window from a pump follows those of another one only if the two agree
    about the last of them.
    """
    source, lo = CapturedSource(), 0
    landed = []  # lo, hi, who was read
    for moments, step in enumerate(steps, 1):
        now = (20 + moments) * LEAP
        there = [
            Replica(
                name,
                begin * LEAP,
                min(begin + reach, 20 + moments) * LEAP,
                answers=answers,
                lacks=3 if name == "d" else 0,
            )
            for name, begin, reach, answers in step
        ]
        by_name = {each.status.node_id: each for each in there}
        usable = [each for each in there if each.answers == "yes" and each.begin <= lo]
        try:
            answer = source.choose(
                [each.status for each in there],
                lo,
                now,
                lambda pump, at=lo, known=by_name: Asked(known[pump.node_id], at),
                lambda pump, lo, hi, known=by_name: known[pump.node_id].digest(lo, hi),
            )
        except (PumpUnavailableError, CommitsPurgedError) as error:
            assert not usable
            assert error.transient == (not there or any(each.answers != "yes" for each in there))
            continue
        except ReplicaDiffersError as error:
            names = [name for name in by_name if f"pump {name} at" in str(error)]
            assert any(
                differ(former, by_name[name], after, through)
                for name in names
                for after, through, former in landed
            )
            return
        assert isinstance(answer, CapturedAnswer)
        read = by_name[answer.pump.node_id]
        last = landed[-1:] if landed and landed[-1][2].status.node_id != read.status.node_id else []
        for after, through, former in last:
            if read.begin <= after and read.frontier >= through:
                assert not differ(former, read, after, through)
        assert read in usable
        best = max(each.frontier for each in usable)
        assert read.frontier >= min(best - 2 * LEAP, now - 3 * LEAP)
        hi = max(lo, min(now, answer.bounds.hi))
        landed += [(lo, hi, read)] if hi > lo else []
        lo = hi


def differ(one, other, lo, hi):
    """Whether two replicas have different counts of commits in a range."""
    return one.count(lo, hi) != other.count(lo, hi)


DIVISIONS = {"": [""], "/2": ["1/2", "2/2"], "/3": ["1/3", "2/3", "3/3"]}
pumps_of_shares = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from([share for division in DIVISIONS.values() for share in division]),
        st.integers(0, 20),
        st.integers(0, 20),
        st.sampled_from(["yes", "yes", "yes", "dead", "hangs"]),
    ),
    max_size=8,
    unique_by=lambda each: each[0],
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(pumps_of_shares, min_size=1, max_size=10))
def test_whatever_pumps_of_shares_do_each_window_has_every_share_once(steps):
    """What is read are all shares of one division, each complete; or no division has them."""
    source, lo = CapturedShares(), 0
    for moments, step in enumerate(steps, 1):
        now = (20 + moments) * LEAP
        by_name = {
            name: Replica(
                name,
                begin * LEAP,
                min(begin + reach, 20 + moments) * LEAP,
                answers=answers,
                share=share,
            )
            for name, share, begin, reach, answers in step
        }
        usable = {share: 0 for division in DIVISIONS.values() for share in division}
        for each in by_name.values():
            if each.answers == "yes" and each.begin <= lo:
                share = each.status.captured_share
                usable[share] = max(usable[share], each.frontier + 1)
        whole = [shares for shares in DIVISIONS.values() if all(usable[each] for each in shares)]
        try:
            answers = source.choose(
                [each.status for each in by_name.values()],
                lo,
                now,
                lambda pump, at=lo, known=by_name: Asked(known[pump.node_id], at),
                lambda pump, lo, hi, known=by_name: known[pump.node_id].digest(lo, hi),
            )
        except (PumpUnavailableError, CommitsPurgedError):
            assert not whole
            continue
        read = [by_name[answer.pump.node_id] for answer in answers]
        assert [each.status.captured_share for each in read] in whole
        assert all(each.answers == "yes" and each.begin <= lo for each in read)
        reach = min(each.frontier for each in read)
        best = max(min(usable[each] - 1 for each in shares) for shares in whole)
        assert reach >= min(best - 4 * LEAP, now - 3 * LEAP)
        lo = max(lo, min(now, *(answer.bounds.hi for answer in answers)))
