"""Whatever befalls regions and streams: at a frontier, exactly the transactions through it have
come, whole.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.pump_service.capture import subscriptions as subscriptions_module
from sluice.pump_service.capture.coverage import Coverage, PieceState
from sluice.pump_service.capture.matcher import MatcherTotals
from sluice.pump_service.capture.owned_changes import OwnedChanges
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.sorter import CommitSorter
from sluice.pump_service.capture.subscriptions import Locate, Send, Subscriptions
from sluice.tidb import pb
from sluice.tidb.pd import Peer, Region
from sluice.tidb.table_shares import Share
from tests.examples import examples
from tests.pump_service.capture.small_tikv import KEYS, SPANS, SmallTiKV

STEPS = (
    "begin", "prewrite", "prewrite", "prewrite", "commit", "commit", "one phase", "rollback",
    "split", "split table", "merge", "move", "scan", "scan", "advance", "advance", "deliver",
    "deliver", "break", "silence", "congest", "tick", "locate", "take", "flow", "flow", "flow",
)  # fmt: skip


TABLES = {"1/1": {0, 1, 2}, "1/2": {0, 2}, "2/2": {1}}
"""Tables of the small TiKV by share."""


class World:
    """The client's decisions, the small TiKV, and what has been taken so far."""

    def __init__(self, folder: Path, memory_bytes: int, share: Share) -> None:
        self.share = share
        self.tikv = SmallTiKV()
        self.tikv.one_phase(KEYS[:6], b"before")
        self.from_ts = self.tikv.tso()
        self.sorter = CommitSorter(RunFolder(folder), memory_bytes)
        self.totals = MatcherTotals(self.sorter, memory_bytes)
        self.coverage = Coverage(SPANS, self.from_ts, share)
        self.owned = OwnedChanges(share)
        self.subscriptions = Subscriptions(self.coverage, self.totals, 7)
        self.now = 0.0
        self.locates: list[Locate] = []
        self.frontier = self.from_ts
        self.taken: dict[tuple[int, int], dict[bytes, tuple[bytes, bytes, bool]]] = {}

    def step(self, name: str, a: int, b: int) -> None:
        tikv, now = self.tikv, self.now
        txn = tikv.open[a % len(tikv.open)] if tikv.open else None
        if name == "begin":
            tikv.begin(is_async=bool(b % 2))
        elif name == "prewrite" and txn:
            tikv.prewrite(txn, KEYS[b % len(KEYS)], b"v%d" % b * (b % 5))
        elif name == "commit" and txn:
            tikv.commit(txn, b % 3 + 1)
        elif name == "one phase":
            tikv.one_phase([KEYS[a % len(KEYS)], KEYS[b % len(KEYS)]], b"one" * (b % 4))
        elif name == "rollback" and txn:
            tikv.rollback(txn, is_visible=bool(b % 2))
        elif name == "split":
            tikv.split(KEYS[b % len(KEYS)])
        elif name == "split table":
            tikv.split(KEYS[b % 18 + 2][:9])
        elif name == "merge":
            tikv.merge(a)
        elif name == "move":
            tikv.move(a, is_named=bool(b % 2))
        elif name == "scan":
            tikv.scan(a % 4 + 1)
        elif name == "advance":
            tikv.advance(goes_back=bool(b % 2))
        elif name == "deliver":
            self.deliver(a % 6 + 1)
        elif name == "break":
            broken = tikv.break_stream(a)
            if broken:
                self.subscriptions.stream_ended(*broken, now)
        elif name == "silence":
            tikv.silence(a)
        elif name == "congest":
            tikv.congest(a)
        elif name == "tick":
            self.pass_time(
                (0.2, 0.2, 0.2, 2.0, 2.0, 100.0, 1000.0)[b % 7], ticks=(1, 4, 200)[a % 3]
            )
        elif name == "locate":
            self.locate(a)
        elif name == "take":
            self.take()
        elif name == "flow":
            for part in ("tick", "locate", "scan", "advance", "deliver", "take"):
                self.step(part, a, b)
        self.act()
        self.totals.relieve()
        self.sorter.relieve()
        self.check()

    def pass_time(self, seconds: float, ticks: int) -> None:
        """With a single tick the process stood still for so long."""
        for _ in range(ticks):
            self.now += seconds / ticks
            self.subscriptions.tick(self.now)

    def deliver(self, messages: int) -> None:
        for stream in list(self.tikv.sent):
            for _ in range(min(messages, len(self.tikv.sent[stream]))):
                self.subscriptions.received(*stream, self.tikv.sent[stream].popleft(), self.now)

    def act(self) -> None:
        actions, self.subscriptions.actions = self.subscriptions.actions, []
        for action in actions:
            if isinstance(action, Send):
                self.tikv.request(*action)
            else:
                self.locates.append(action)

    def locate(self, limit: int) -> None:
        locates, self.locates = self.locates, []
        for start, end in locates:
            if limit % 7 == 6:
                self.subscriptions.not_located(start, end, self.now)
                continue
            found = [
                r
                for r in self.tikv.regions
                if r.start_key < end and (not r.end_key or start < r.end_key)
            ]
            self.subscriptions.located(start, end, found[: limit % 5 + 1], self.now)

    def check(self) -> None:
        pieces = list(self.coverage)
        for start, end in SPANS if self.share.is_whole else ():
            inside = [piece for piece in pieces if start <= piece.start < end]
            assert [piece.start for piece in inside] == [
                start,
                *(piece.end for piece in inside[:-1]),
            ]
            assert inside[-1].end == end
        assert self.coverage.frontier() >= self.frontier
        assert self.totals.prewrites == sum(
            len(of) for matcher in self.totals.matchers for of in matcher._open.values()
        )

    def take(self) -> None:
        self.frontier = self.coverage.frontier()
        for each in self.owned.of(self.sorter.take(self.frontier)):
            identity = (each.commit_ts, each.start_ts)
            assert identity > max(self.taken, default=(0, 0))
            assert each.commit_ts <= self.frontier
            self.taken[identity] = {
                c.key: (c.value, c.old_value, c.is_delete) for c in each.changes
            }
        assert self.taken == {
            identity: owned
            for identity, changes in self.tikv.committed.items()
            if self.from_ts < identity[0] <= self.frontier
            and (owned := {key: change for key, change in changes.items() if self.owns(key)})
        }
        for piece in self.coverage:
            is_bounded = min(len(piece.start), len(piece.end)) >= 9
            if is_bounded and piece.state is PieceState.LIVE:
                ids = range(piece.start[8], piece.end[8] + (len(piece.end) > 9))
                assert TABLES[str(self.share)].intersection(ids), "nothing else is subscribed"

    def owns(self, key: bytes) -> bool:
        """Which tables there are is known: 0, 1 and 2."""
        return key[:1] == b"m" or key[8] in TABLES[str(self.share)]

    def settle(self) -> None:
        """End all transactions and let everything arrive: the frontier must reach the present."""
        for txn in list(self.tikv.open):
            if (txn.locked and txn.start_ts % 2) or txn.commit_ts:
                self.tikv.commit(txn, len(KEYS))
            else:
                self.tikv.rollback(txn, is_visible=True)
        target = self.tikv.tso()
        for _ in range(60):
            self.pass_time(20, ticks=5)
            for step in ("tick", "locate", "scan", "scan", "advance", "deliver", "deliver"):
                self.step(step, 4, 0)
                self.deliver(1000)
            if self.coverage.frontier() > target:
                break
        assert self.coverage.frontier() > target
        self.take()
        assert self.totals.prewrites == 0 or self.totals.bytes > 0
        assert self.sorter.bytes == 0


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 50), st.integers(0, 50)), max_size=150
    ),
    st.sampled_from([200, 2000, 1 << 30]),
    st.sampled_from([*map(Share.parse, TABLES)]),
)
@example([("tick", 0, 0), ("locate", 4, 0), ("scan", 3, 0), ("deliver", 5, 0)], 1 << 30, Share())
def test_at_every_frontier_exactly_the_transactions_through_it_have_come(
    steps, memory_bytes, share
):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "runs", memory_bytes, share)
        for step in steps:
            world.step(*step)
        world.settle()


def test_a_silent_region_is_subscribed_again_and_none_after_the_process_stood_still(tmp_path):
    world = World(tmp_path / "runs", 1 << 20, Share())
    for _ in range(6):
        world.step("flow", 4, 0)
    pieces = list(world.coverage)
    assert {piece.state for piece in pieces} == {PieceState.LIVE}
    world.pass_time(3600, ticks=1)
    assert not world.subscriptions.events["renewed"]
    world.tikv.silence(0)
    world.tikv.one_phase(KEYS[:3], b"unheard")
    for _ in range(70):
        world.pass_time(1, ticks=2)
        world.step("advance", 0, 0)
        world.step("deliver", 5, 0)
    assert world.subscriptions.events["renewed"] == 1
    world.settle()
    assert world.subscriptions.events["renewed"] == 1


def test_a_region_that_was_live_is_subscribed_before_those_that_are_new(tmp_path, monkeypatch):
    monkeypatch.setattr(subscriptions_module, "_MAX_SCANNING", 2)
    sorter = CommitSorter(RunFolder(tmp_path / "runs"), 1 << 20)
    coverage = Coverage([(b"t", b"u")], 5)
    subscriptions = Subscriptions(coverage, MatcherTotals(sorter, 1 << 20), 7)
    bounds = [b"t", *(b"t" + bytes([number]) for number in range(1, 9)), b""]
    regions = [
        Region(number + 1, start, end, 1, 1, (Peer(number, 1),), Peer(number, 1))
        for number, (start, end) in enumerate(pairwise(bounds))
    ]

    def sent():
        actions, subscriptions.actions = subscriptions.actions, []
        return [each for each in actions if isinstance(each, Send)]

    def event(send, now, **content):
        message = pb.cdc.ChangeDataEvent()
        message.events.add(
            region_id=send.request.region_id, request_id=send.request.request_id, **content
        )
        subscriptions.received(send.store_id, send.stream, message, now)

    initialized = {"entries": {"entries": [{"type": pb.cdc.Event.INITIALIZED}]}}
    subscriptions.tick(0.0)
    subscriptions.located(b"t", b"u", regions, 0.0)
    first, second = sent()
    event(first, 0.0, **initialized)
    (third,) = sent()
    event(first, 1.0, error={"not_leader": {"leader": {"id": 1, "store_id": 1}}})
    assert not sent(), "two are being scanned"
    subscriptions.tick(2.0)
    event(second, 2.0, **initialized)
    (again,) = sent()
    assert again.request.region_id == first.request.region_id
    event(third, 2.0, **initialized)
    (new,) = sent()
    assert new.request.region_id not in {each.request.region_id for each in (first, second, third)}


def test_ten_thousand_regions_are_subscribed_without_waiting_for_the_next_page_of_pd(tmp_path):
    sorter = CommitSorter(RunFolder(tmp_path / "runs"), 1 << 20)
    coverage = Coverage([(b"t", b"u")], 5)
    subscriptions = Subscriptions(coverage, MatcherTotals(sorter, 1 << 20), 7)
    bounds = [b"t", *(b"t" + number.to_bytes(8, "big") for number in range(1, 10_000)), b""]
    regions = [
        Region(number + 1, start, end, 1, 1, (Peer(number, 1),), Peer(number, 1))
        for number, (start, end) in enumerate(pairwise(bounds))
    ]
    places = {region.start_key: number for number, region in enumerate(regions)}
    sent = 0
    subscriptions.tick(0.0)
    while subscriptions.actions:
        actions, subscriptions.actions = subscriptions.actions, []
        live = pb.cdc.ChangeDataEvent()
        stream = (0, 0)
        for action in actions:
            if isinstance(action, Locate):
                at = places[action.start]
                subscriptions.located(action.start, action.end, regions[at : at + 1024], 0.0)
            else:
                sent += 1
                stream = (action.store_id, action.stream)
                event = live.events.add(
                    region_id=action.request.region_id, request_id=action.request.request_id
                )
                event.entries.entries.add(type=pb.cdc.Event.INITIALIZED)
        subscriptions.received(*stream, live, 0.0)
    assert sent == len(coverage) == 10_000
    assert {piece.state for piece in coverage} == {PieceState.LIVE}
