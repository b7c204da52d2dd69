"""Holders of shares: whatever happens to them, each share comes to one that lives, and no pump
begins behind what is landed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.config.settings import CaptureOptions, Config
from sluice.pump_service.share_holder import ShareHolder, owners
from sluice.tidb import tso
from sluice.tidb.etcd import CAPTURED_LABEL, SHARE_LABEL, KeyListing, KeyValue, NodeStatus
from tests.examples import examples

COUNT = 3
NAMES = ["10.0.0.1:8250", "10.0.0.2:8250", "10.0.0.3:8250"]
SECOND = tso.span(1000)

members = st.dictionaries(
    st.sampled_from("abcdefgh"), st.frozensets(st.integers(1, 12)), min_size=1, max_size=8
)


@given(members, st.integers(1, 12))
def test_each_share_has_one_owner_who_does_not_decline_it(members, count):
    found = owners(members, count)
    for number in range(1, count + 1):
        willing = [member for member, declined in members.items() if number not in declined]
        assert (found[number] in willing) if willing else (number not in found)


@given(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(1, 12))
def test_shares_are_spread_evenly_and_the_order_of_members_does_not_matter(names, count):
    found = owners(dict.fromkeys(sorted(names), ()), count)
    assert found == owners(dict.fromkeys(sorted(names, reverse=True), ()), count)
    loads = [list(found.values()).count(name) for name in names]
    assert max(loads) <= -(-count // len(names)) and sum(loads) == count


@dataclass
class Store:
    """What a data directory keeps of a pump."""

    begin: int
    frontier: int


class Pump:
    """A share's pump: it follows TiKV while its process runs."""

    def __init__(self, world, config):
        self.world, self.config, self.node_id = world, config, config.node_id
        folder = Path(config.data_dir)
        if not (folder / ".node").exists():
            begin = config.capture.start_ts or world.now
            is_free = world.kept or not world.is_read
            assert begin <= world.lo or is_free, "commits behind what is landed, in no pump"
            folder.mkdir(parents=True)
            (folder / ".node").touch()
            world.stores[config.data_dir] = Store(begin, begin)
        self.store = world.stores[config.data_dir]
        self.state, self.runs, self.is_frozen, self.failed = "online", True, False, False
        world.pumps[self.node_id] = self

    @property
    def share(self):
        return str(self.config.capture.share)

    def status(self):
        label = {CAPTURED_LABEL: "7", SHARE_LABEL: self.share}
        return NodeStatus(self.node_id, "h", self.state, label=label, max_commit_ts=self.seen)

    seen = 0

    def tick(self):
        if self.runs and not self.is_frozen:
            self.store.frontier = self.store.frontier if self.failed else self.world.now
            self.seen = self.store.frontier
            if self.state == "closing" and self.world.lo >= self.closes_at:
                self.state, self.runs = "offline", False

    closes_at = 0

    def answers(self):
        return self.runs and not self.is_frozen and self.store.begin <= self.world.lo

    def is_alive(self):
        return self.runs

    def is_offline(self):
        return self.state == "offline"

    is_paused_by_operator = False

    def is_paused(self):
        return self.is_paused_by_operator

    def has_failed(self):
        return self.failed

    def pause(self):
        self.state, self.runs = "paused", False

    def close(self):
        self.state, self.closes_at = "closing", self.store.frontier

    def join(self, timeout_s):
        pass


class World:
    """etcd, the registry, a landing pipeline, and holders; time passes in seconds."""

    def __init__(self, folder):
        self.folder, self.seconds = folder, 0
        self.now = self.lo = 1000 * SECOND
        self.entries, self.pumps, self.stores, self.holders = {}, {}, {}, {}
        self.frozen, self.kept, self.lands, self.is_read = set(), 0, True, True

    # etcd and the registry, as the holders use them

    def put(self, key, value):
        self.entries[key] = value
        return 1

    def range_prefix(self, prefix):
        items = [KeyValue(k, v, 1, 1, 1) for k, v in self.entries.items() if k.startswith(prefix)]
        return KeyListing(tuple(items), 1)

    def delete(self, key):
        return self.entries.pop(key, None) is not None

    def drainers(self):
        if not self.is_read:
            return []
        return [NodeStatus("pipeline", "h", "online", max_commit_ts=self.lo)]

    class _Registry:
        def __init__(self, world):
            self.drainers = world.drainers
            self.pumps = lambda: [pump.status() for pump in world.pumps.values()]

    # what happens

    def start(self, name):
        if name not in self.holders:
            config = Config(
                addr=name,
                advertise_addr=name,
                data_dir=f"{self.folder}/{name}",
                heartbeat_interval=1.0,
                capture=CaptureOptions(enabled=True, shares=COUNT),
            )
            self.holders[name] = ShareHolder(
                config,
                self,
                self._Registry(self),
                lambda own: Pump(self, own),
                lambda: self.kept or self.lo - SECOND,
            )

    def own(self, name):
        return [pump for pump in self.pumps.values() if pump.config.data_dir.count(f"/{name}/")]

    def kill(self, name):
        self.thaw(name)
        if self.holders.pop(name, None) is not None:
            for pump in self.own(name):
                pump.runs = False

    def freeze(self, name):
        if name in self.holders:
            self.frozen.add(name)
            for pump in self.own(name):
                pump.is_frozen = True

    def thaw(self, name):
        self.frozen.discard(name)
        for pump in self.own(name):
            pump.is_frozen = False

    def crash(self, name):
        """Kill the pumps of a holder, but not the holder."""
        for pump in self.own(name):
            pump.runs = False

    def close(self, name):
        """Take a pump of a holder offline, as an operator does."""
        for pump in self.own(name)[:1]:
            if pump.state == "online":
                pump.close()

    def pass_s(self, seconds):
        for _ in range(seconds):
            self.seconds += 1
            self.now += SECOND
            for pump in self.pumps.values():
                pump.tick()
            reach = []
            for number in range(1, COUNT + 1):
                there = [
                    pump.store.frontier
                    for pump in self.pumps.values()
                    if pump.share == f"{number}/{COUNT}" and pump.answers()
                ]
                reach.append(max(there, default=0))
            self.lo = max(self.lo, min(reach)) if self.lands else self.lo
            for name, holder in self.holders.items():
                if name not in self.frozen:
                    holder.step(float(self.seconds))


actions = st.tuples(
    st.sampled_from(["start", "start", "kill", "freeze", "thaw", "crash"]),
    st.sampled_from(NAMES),
    st.integers(0, 12),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(actions, max_size=25), st.sampled_from(NAMES))
def test_whatever_befalls_holders_every_share_comes_to_one_that_lives(steps, last):
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder)
        for action, name, seconds in steps:
            getattr(world, action)(name)
            world.pass_s(seconds)
        world.start(last)
        for name in NAMES:
            world.thaw(name)
        world.pass_s(90)
        assert world.lo >= world.now - 2 * SECOND, "landing moves on"
        held = {name: holder.shares for name, holder in world.holders.items()}
        wanted = owners(dict.fromkeys(world.holders, ()), COUNT)
        assert held == {
            name: [number for number in wanted if wanted[number] == name] for name in world.holders
        }
        running = [pump for pump in world.pumps.values() if pump.runs]
        assert sorted(pump.share for pump in running) == [f"{n}/{COUNT}" for n in (1, 2, 3)]


def test_a_member_that_joins_gets_its_part_and_no_share_is_away_meanwhile(tmp_path):
    world = World(tmp_path)
    world.start(NAMES[0])
    world.pass_s(3)
    assert world.holders[NAMES[0]].shares == [1, 2, 3]
    for name in NAMES[1:]:
        world.start(name)
        for _ in range(20):
            before = world.lo
            world.pass_s(1)
            assert world.lo > before, "landing never waits for a share that moves"
    assert sorted(len(holder.shares) for holder in world.holders.values()) == [1, 1, 1]
    states = sorted(pump.state for pump in world.pumps.values())
    assert states.count("online") == COUNT and set(states) == {"online", "offline"}
    assert len(list(tmp_path.rglob(".node"))) == COUNT, "what was left is removed"


def test_a_share_that_an_operator_takes_offline_goes_to_another_member(tmp_path):
    world = World(tmp_path)
    for name in NAMES[:2]:
        world.start(name)
    world.pass_s(20)
    (pump, *_) = world.own(NAMES[0])
    world.close(NAMES[0])
    world.pass_s(20)
    assert not any(each.share == pump.share for each in world.own(NAMES[0]) if each.runs)
    assert any(each.share == pump.share for each in world.own(NAMES[1]) if each.runs)
    assert world.lo >= world.now - 2 * SECOND


def test_a_pump_that_an_operator_pauses_stays_down_until_its_holder_starts_again(tmp_path):
    world = World(tmp_path)
    for name in NAMES[:2]:
        world.start(name)
    world.pass_s(20)
    (pump, *_) = world.own(NAMES[0])
    pump.is_paused_by_operator = True
    pump.pause()
    world.pass_s(40)
    assert not any(each.share == pump.share for each in world.own(NAMES[0]) if each.runs)
    assert any(each.share == pump.share for each in world.own(NAMES[1]) if each.runs)
    assert world.lo >= world.now - 2 * SECOND, "another member has the share meanwhile"
    assert Path(pump.config.data_dir, ".node").exists(), "its data are kept"
    world.kill(NAMES[0])
    world.start(NAMES[0])
    world.pass_s(40)
    assert any(each.share == pump.share for each in world.own(NAMES[0]) if each.runs)
    running = [each.share for each in world.pumps.values() if each.runs]
    assert sorted(running) == [f"{number}/{COUNT}" for number in range(1, COUNT + 1)]


def test_a_share_whose_capture_failed_goes_to_a_member_whose_capture_runs(tmp_path):
    world = World(tmp_path)
    for name in NAMES:
        world.start(name)
    world.pass_s(20)
    failed = next(pump for pump in world.pumps.values() if pump.runs)
    failed.failed = True
    world.pass_s(20)
    (other,) = (p for p in world.pumps.values() if p.runs and p.share == failed.share)
    assert other is not failed and failed.state == "offline"
    assert world.lo >= world.now - 2 * SECOND
    other.failed = True
    world.pass_s(20)
    (last,) = (p for p in world.pumps.values() if p.runs and p.share == failed.share)
    last.failed = True
    world.pass_s(20)
    assert last.runs and last.state == "online", "it still has what readers want"


def test_where_tikv_lacks_what_is_not_landed_a_share_begins_where_its_former_pump_was(tmp_path):
    world = World(tmp_path)
    world.start(NAMES[0])
    world.pass_s(10)
    world.lands = False
    world.pass_s(10)
    former = {pump.share: pump.seen for pump in world.pumps.values()}
    world.kill(NAMES[0])
    world.kept = world.lo + 1
    world.pass_s(20)
    world.start(NAMES[1])
    world.pass_s(10)
    begins = {pump.share: pump.store.begin for pump in world.own(NAMES[1])}
    assert begins == former and all(begin > world.lo for begin in begins.values())
    world.start(NAMES[0])
    world.lands = True
    world.pass_s(20)
    assert world.lo >= world.now - 2 * SECOND, "the former pumps have what lies between"


def test_without_a_pipeline_a_share_that_moves_stays_where_its_data_are_as_well(tmp_path):
    world = World(tmp_path)
    world.is_read = False
    world.start(NAMES[0])
    world.pass_s(5)
    world.start(NAMES[1])
    world.pass_s(30)
    assert world.holders[NAMES[0]].shares == [1, 2, 3]
    world.is_read, world.lo = True, world.now
    world.pass_s(30)
    assert len(world.holders[NAMES[0]].shares) < COUNT
