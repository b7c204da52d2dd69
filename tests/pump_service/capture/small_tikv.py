"""A TiKV of a few keys, in one thread: transactions, regions, and the streams of change data that
it sends.

It shares no code with the client. What it has sent waits in each stream until `deliver` takes it
out, so a stream can break at any message.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import decode_bytes
from sluice.tidb.pd import Peer, Region

Row, Event = pb.cdc.Event.Row, pb.cdc.Event
KEYS = [
    b"mDDL\x01",
    b"mZ\x02",
    *(b"t" + bytes([128, 0, 0, 0, 0, 0, 0, n // 6]) + b"_r" + bytes([n]) for n in range(18)),
]
SPANS = [(b"m", b"n"), (b"t", b"u")]
SHORT = 6


@dataclass
class Lock:
    start_ts: int
    value: bytes
    old: bytes
    is_delete: bool


@dataclass
class Txn:
    start_ts: int
    locked: list[bytes] = field(default_factory=list)
    commit_ts: int = 0
    is_async: bool = False


@dataclass(eq=False)
class Feed:
    region_id: int
    request_id: int
    start: bytes
    end: bytes
    checkpoint: int
    scan: list[Row] = field(default_factory=list)
    is_live: bool = False
    is_silent: bool = False

    def covers(self, key: bytes) -> bool:
        return self.start <= key < self.end


class SmallTiKV:
    def __init__(self) -> None:
        self.ts = 1000
        self.max_ts = 1000
        self.locks: dict[bytes, Lock] = {}
        self.writes: dict[bytes, list[tuple[int, int, bytes, bytes, bool]]] = defaultdict(list)
        self.committed: dict[tuple[int, int], dict[bytes, tuple[bytes, bytes, bool]]] = defaultdict(
            dict
        )
        self.open: list[Txn] = []
        self.next_region = 10
        self.regions = [
            self.region(b"", b"t", 1, 1),
            self.region(b"t", KEYS[8], 1, 2),
            self.region(KEYS[8], b"", 1, 1),
        ]
        self.feeds: dict[tuple[int, int], list[Feed]] = defaultdict(list)
        self.sent: dict[tuple[int, int], deque[pb.cdc.ChangeDataEvent]] = defaultdict(deque)
        self.broken: set[tuple[int, int]] = set()

    def region(self, start: bytes, end: bytes, version: int, store: int) -> Region:
        self.next_region += 1
        peer = Peer(self.next_region * 10 + store, store)
        return Region(self.next_region, start, end, 1, version, (peer,), peer)

    def tso(self) -> int:
        self.ts += 1
        return self.ts

    # transactions

    def value(self, key: bytes) -> bytes:
        return self.writes[key][-1][2] if self.writes[key] else b""

    def begin(self, *, is_async: bool = False) -> Txn:
        txn = Txn(self.tso(), is_async=is_async)
        self.open.append(txn)
        return txn

    def prewrite(self, txn: Txn, key: bytes, value: bytes) -> None:
        if (
            key in self.locks
            or txn.commit_ts
            or (self.writes[key] and self.writes[key][-1][0] > txn.start_ts)
        ):
            return
        lock = self.locks[key] = Lock(txn.start_ts, value, self.value(key), not value)
        txn.locked.append(key)
        self._live(key, self._row(Event.PREWRITE, key, lock, 0))

    def commit(self, txn: Txn, keys: int) -> None:
        """Take a commit_ts if there is none, and commit so many of the keys that are left."""
        if not txn.commit_ts:
            txn.commit_ts = max(self.max_ts, txn.start_ts) + 1 if txn.is_async else self.tso()
            self.ts = max(self.ts, txn.commit_ts)
        for key in txn.locked[:keys]:
            lock = self.locks.pop(key)
            self._write(key, txn.start_ts, txn.commit_ts, lock)
            self._live(key, self._row(Event.COMMIT, key, lock, txn.commit_ts))
        txn.locked = txn.locked[keys:]
        if not txn.locked:
            self.open.remove(txn)

    def one_phase(self, keys: list[bytes], value: bytes) -> None:
        start_ts = self.tso()
        commit_ts = max(self.max_ts, start_ts) + 1
        self.ts = max(self.ts, commit_ts)
        for key in keys:
            if key not in self.locks and not (
                self.writes[key] and self.writes[key][-1][0] >= start_ts
            ):
                lock = Lock(start_ts, value, self.value(key), not value)
                self._write(key, start_ts, commit_ts, lock)
                self._live(key, self._row(Event.COMMITTED, key, lock, commit_ts))

    def rollback(self, txn: Txn, *, is_visible: bool) -> None:
        if txn.commit_ts:
            return
        for key in txn.locked:
            del self.locks[key]
            if is_visible:
                self._live(key, Row(type=Event.ROLLBACK, start_ts=txn.start_ts, key=key))
        self.open.remove(txn)

    def _write(self, key: bytes, start_ts: int, commit_ts: int, lock: Lock) -> None:
        self.writes[key].append((commit_ts, start_ts, lock.value, lock.old, lock.is_delete))
        self.committed[commit_ts, start_ts][key] = (lock.value, lock.old, lock.is_delete)

    @staticmethod
    def _row(kind: int, key: bytes, lock: Lock, commit_ts: int) -> Row:
        row = Row(start_ts=lock.start_ts, commit_ts=commit_ts, key=key)
        row.type = kind  # type: ignore[assignment]
        row.op_type = Row.DELETE if lock.is_delete else Row.PUT
        if kind != Event.COMMIT or len(lock.value) <= SHORT:
            row.value = lock.value
        if kind != Event.COMMIT:
            row.old_value = lock.old
        return row

    # regions

    def split(self, at: bytes) -> None:
        index = next(i for i, r in enumerate(self.regions) if r.covers(at))
        whole = self.regions[index]
        if whole.start_key == at:
            return
        assert whole.leader
        left = self.region(whole.start_key, at, whole.version + 1, whole.leader.store_id)
        right = Region(whole.id, at, whole.end_key, 1, whole.version + 1, whole.peers, whole.leader)
        self.regions[index : index + 1] = [left, right]
        self._end_region(whole, "epoch_not_match")

    def merge(self, index: int) -> None:
        index %= len(self.regions)
        if index + 1 >= len(self.regions):
            return
        left, right = self.regions[index : index + 2]
        version = max(left.version, right.version) + 1
        whole = Region(
            right.id, left.start_key, right.end_key, 1, version, right.peers, right.leader
        )
        self.regions[index : index + 2] = [whole]
        self._end_region(left, "region_not_found")
        self._end_region(right, "epoch_not_match")

    def move(self, index: int, *, is_named: bool) -> None:
        index %= len(self.regions)
        region = self.regions[index]
        assert region.leader
        store = 3 - region.leader.store_id
        peer = Peer(region.id * 10 + store, store)
        self.regions[index] = Region(
            region.id,
            region.start_key,
            region.end_key,
            region.conf_ver,
            region.version,
            (peer,),
            peer,
        )
        self._end_region(region, "not_leader", leader=store if is_named else 0)

    def _end_region(self, region: Region, kind: str, leader: int = 0) -> None:
        for stream, feeds in self.feeds.items():
            for feed in [each for each in feeds if each.region_id == region.id]:
                feeds.remove(feed)
                self._error(stream, feed.region_id, feed.request_id, kind, leader)

    def _error(
        self, stream: tuple[int, int], region_id: int, request_id: int, kind: str, leader: int = 0
    ) -> None:
        event = Event(region_id=region_id, request_id=request_id)
        getattr(event.error, kind).SetInParent()
        if leader:
            event.error.not_leader.leader.id = region_id * 10 + leader
            event.error.not_leader.leader.store_id = leader
        self._send(stream, event)

    # streams

    def request(self, store: int, stream: int, request: pb.cdc.ChangeDataRequest) -> None:
        of = (store, stream)
        if of in self.broken:
            return
        if request.WhichOneof("request") == "deregister":
            for feed in list(self.feeds[of]):
                if (feed.region_id, feed.request_id) == (request.region_id, request.request_id):
                    self.feeds[of].remove(feed)
                    self._error(of, feed.region_id, feed.request_id, "region_not_found")
            return
        region = next((each for each in self.regions if each.id == request.region_id), None)
        assert region is None or region.leader
        feed = Feed(
            request.region_id,
            request.request_id,
            decode_bytes(request.start_key)[0],
            decode_bytes(request.end_key)[0],
            request.checkpoint_ts,
        )
        if region is None:
            self._error(of, request.region_id, request.request_id, "region_not_found")
        elif (request.region_id, request.request_id) in {
            (f.region_id, f.request_id) for f in self.feeds[of]
        }:
            self._error(of, request.region_id, request.request_id, "duplicate_request")
        elif region.version != request.region_epoch.version:
            self._error(of, request.region_id, request.request_id, "epoch_not_match")
        elif region.leader and region.leader.store_id != store:
            self._error(of, request.region_id, request.request_id, "not_leader")
        else:
            self._snapshot(feed)
            self.feeds[of].append(feed)

    def _snapshot(self, feed: Feed) -> None:
        for key in KEYS:
            if not feed.covers(key):
                continue
            if key in self.locks:
                feed.scan.append(self._row(Event.PREWRITE, key, self.locks[key], 0))
            for commit_ts, start_ts, value, old, is_delete in reversed(self.writes[key]):
                if commit_ts > feed.checkpoint:
                    lock = Lock(start_ts, value, old, is_delete)
                    feed.scan.append(self._row(Event.COMMITTED, key, lock, commit_ts))
        feed.scan.append(Row(type=Event.INITIALIZED))

    def scan(self, rows: int) -> None:
        """Send the next rows of every scan."""
        for stream, feeds in self.feeds.items():
            for feed in feeds:
                if feed.scan:
                    part, feed.scan = feed.scan[:rows], feed.scan[rows:]
                    self._rows(stream, feed, part)
                    feed.is_live = not feed.scan

    def advance(self, *, goes_back: bool) -> None:
        """Send resolved timestamps; as a batch they have the least of all, so one may go back."""
        self.max_ts = max(self.max_ts, self.tso())
        for stream, feeds in self.feeds.items():
            batches: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for feed in feeds:
                if feed.is_live and not feed.is_silent:
                    locked = [lock.start_ts for key, lock in self.locks.items() if feed.covers(key)]
                    batches[feed.request_id].append((min([self.max_ts, *locked]), feed.region_id))
            for request_id, found in batches.items():
                lowest = min(ts for ts, _ in found)
                for group in [found] if goes_back else [[each] for each in found]:
                    message = pb.cdc.ChangeDataEvent()
                    message.resolved_ts.regions.extend(region for _, region in group)
                    message.resolved_ts.ts = lowest if goes_back else group[0][0]
                    message.resolved_ts.request_id = request_id
                    self._put(stream, message)

    def silence(self, index: int) -> None:
        feeds = [feed for found in self.feeds.values() for feed in found]
        if feeds:
            feeds[index % len(feeds)].is_silent = True

    def congest(self, index: int) -> None:
        feeds = [(stream, feed) for stream, found in self.feeds.items() for feed in found]
        if feeds:
            stream, feed = feeds[index % len(feeds)]
            self.feeds[stream].remove(feed)
            self._error(stream, feed.region_id, feed.request_id, "congested")

    def break_stream(self, index: int) -> tuple[int, int] | None:
        streams = sorted(set(self.feeds) - self.broken)
        if not streams:
            return None
        stream = streams[index % len(streams)]
        self.broken.add(stream)
        self.feeds.pop(stream)
        self.sent.pop(stream, None)
        return stream

    def _live(self, key: bytes, row: Row) -> None:
        for stream, feeds in self.feeds.items():
            for feed in feeds:
                if feed.covers(key):
                    self._rows(stream, feed, [row])

    def _rows(self, stream: tuple[int, int], feed: Feed, rows: list[Row]) -> None:
        if not feed.is_silent:
            event = Event(region_id=feed.region_id, request_id=feed.request_id)
            event.entries.entries.extend(rows)
            self._send(stream, event)

    def _send(self, stream: tuple[int, int], event: pb.cdc.Event) -> None:
        self._put(stream, pb.cdc.ChangeDataEvent(events=[event]))

    def _put(self, stream: tuple[int, int], message: pb.cdc.ChangeDataEvent) -> None:
        self.sent[stream].append(message)
