"""A capture from the stand-in's stores, with threads and streams: every accident and schedule."""

import random
import time
from types import SimpleNamespace

import grpc
import pytest

from sluice.errors import SluiceError
from sluice.pump_service.capture import Capture, CaptureCluster, capture, lock_watch, streams
from sluice.pump_service.capture.check import check_capture
from sluice.pump_service.capture.run_files import RunFolder
from sluice.tidb.pd import PDClient
from sluice.tidb.rpc import TLS
from sluice.tidb.tikv import TiKVClient
from tests.devstack.tidb.change_world import Schedule, effective
from tests.examples import examples
from tests.pump_service.authority import Authority
from tests.pump_service.capture.looped_world import LoopedWorld

ROW = b"t" + bytes(8) + b"_r"
KEYS = [b"m1", b"m2", *(ROW + bytes([letter]) for letter in b"adgmt")]
LONG = b"x" * 300
TIMEOUT_S = 60
SPARE, ROOM = 1 << 20, 2 << 20


class Sink:
    """Keep what it is given; fail once where `failures` says."""

    def __init__(self, from_ts):
        self.from_ts = self.resolved_ts = from_ts
        self.taken = {}
        self.failures = []

    def advance(self, transactions, resolved_ts):
        assert resolved_ts > self.resolved_ts
        found = {}
        for each in transactions:
            identity = (each.commit_ts, each.start_ts)
            assert self.resolved_ts < each.commit_ts <= resolved_ts
            assert identity > max(found, default=(0, 0))
            found[identity] = {
                change.key: (None if change.is_delete else change.value, change.old_value)
                for change in each.changes
            }
        if self.failures:
            raise self.failures.pop()
        self.taken |= found
        self.resolved_ts = resolved_ts


class PassingError(SluiceError):
    transient = True
    hint = "none"


class Captured(LoopedWorld):
    """A world and a capture of it."""

    def __init__(self, folder, memory_bytes=1 << 20, credentials=None, tls=None, spare_bytes=0):
        super().__init__([ROW + b"d", ROW + b"m"], credentials)
        self.pd = PDClient(self.world.pd_url, tls=tls)
        self.tikv = TiKVClient(self.pd, tls=tls)
        self.sink = Sink(self.world.tso())
        self.begun = 0
        self.capture = Capture(
            CaptureCluster(self.pd, self.tikv, tls),
            self._begin,
            folder / "runs",
            memory_bytes,
            spare_bytes,
        )
        self.capture.start()

    def _begin(self):
        self.begun += 1
        return self.sink.resolved_ts, self.sink

    def until(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.capture.status()
            self.do(self.world.tick)
            time.sleep(0.01)

    def catch_up(self):
        """Wait until the capture has all that is committed by now, and compare."""
        ts = self.do(self.world.tso)
        self.until(lambda: self.sink.resolved_ts >= ts)
        self.compare()

    def compare(self):
        through = self.sink.resolved_ts
        found = {key: effective(rows) for key, rows in self.sink.taken.items() if key[0] <= through}
        assert {key: rows for key, rows in found.items() if rows} == self.world.expected(
            self.sink.from_ts, through
        )

    def close(self):
        self.capture.stop()
        self.tikv.close()
        self.pd.close()
        super().close()


@pytest.fixture
def captured(tmp_path):
    made = Captured(tmp_path)
    yield made
    made.close()


def test_every_transaction_arrives_whole_through_splits_merges_lost_streams_and_restarts(captured):
    world, changes = captured.world, captured.world.changes
    captured.do(world.one_phase, dict.fromkeys(KEYS, LONG))
    captured.catch_up()
    open_one = captured.do(world.begin, {KEYS[0]: b"open", KEYS[3]: LONG, KEYS[6]: None})
    captured.do(world.prewrite, open_one)
    captured.do(changes.split, ROW + b"b")
    captured.do(world.one_phase, {KEYS[2]: b"split", KEYS[4]: b"split"})
    captured.do(changes.break_streams)
    captured.do(world.commit, open_one)
    captured.do(changes.merge, world.regions.at(b"").id)
    while captured.do(world.commit_secondary, open_one):
        captured.do(world.tick)
    captured.catch_up()
    captured.sink.failures.append(PassingError("the sink failed"))
    captured.do(world.one_phase, {KEYS[1]: b"again", KEYS[5]: None})
    captured.until(lambda: captured.begun == 2)
    captured.catch_up()
    assert captured.capture.status().restarts == 1
    assert captured.capture.status().regions["live"] >= 3


def test_transactions_beyond_the_memory_limit_arrive_whole(captured):
    world = captured.world
    rows = {ROW + b"%05d" % number: b"%d" % number * 60 for number in range(4000)}
    large = captured.do(world.begin, rows)
    captured.do(world.prewrite, large)
    captured.until(
        lambda: (
            captured.capture.status().unmatched_prewrites < len(rows) and captured.sink.resolved_ts
        )
    )
    captured.do(world.commit_all, large)
    captured.do(world.commit_all, captured.do(world.begin, dict(rows)))
    captured.catch_up()
    assert {len(changes) for changes in captured.sink.taken.values()} == {len(rows)}
    assert captured.capture.status().spilled_changes > 0


def test_an_error_that_does_not_pass_ends_the_capture_and_is_shown(captured):
    captured.sink.failures.append(ValueError("a defect"))
    captured.until(lambda: captured.capture.status().failure)
    assert "a defect" in captured.capture.status().failure
    assert captured.begun == 1


KINDS = (
    *(
        "begin",
        "begin",
        "one phase",
        "prewrite",
        "prewrite",
        "commit",
        "commit",
        "calculated",
        "secondary",
        "rollback",
    ),
    *(
        "tick",
        "tick",
        "run",
        "run",
        "split",
        "merge",
        "congest",
        "to 1",
        "to 2",
        "break",
        "busy",
        "repeat",
        "shake",
    ),
    *("hold", "release"),
)


def test_random_schedules_lose_and_double_nothing(captured):
    for seed in range(examples(6)):
        random_schedule(captured, seed)
        captured.catch_up()


@pytest.fixture
def disk(monkeypatch):
    """The free bytes of the disk of temporary files, as a list of one."""
    free = [ROOM]
    monkeypatch.setattr(RunFolder, "free_bytes", lambda folder: free[0])
    monkeypatch.setattr(capture, "_SPACE_CHECK_INTERVAL_S", 0.01)
    return free


@pytest.mark.slow
def test_random_schedules_lose_nothing_while_memory_is_full_and_the_disk_now_and_then(
    tmp_path, disk
):
    captured, chosen = Captured(tmp_path, 1500, spare_bytes=SPARE), random.Random(5)
    try:
        for seed in range(4):
            random_schedule(captured, seed, lambda: disk.__setitem__(0, chosen.choice([0, ROOM])))
            disk[0] = ROOM
            captured.catch_up()
        assert captured.begun == 1
    finally:
        captured.close()


def test_nothing_is_taken_from_tikv_while_neither_memory_nor_the_disk_has_room(tmp_path, disk):
    captured = Captured(tmp_path, 1 << 20, spare_bytes=SPARE)
    world, status = captured.world, captured.capture.status
    try:
        captured.catch_up()
        disk[0] = SPARE
        transactions = [
            captured.do(
                world.begin, {ROW + b"%02d%03d" % (number, row): LONG for row in range(100)}
            )
            for number in range(40)
        ]
        for transaction in transactions:
            captured.do(world.prewrite, transaction)
        captured.until(lambda: "are free" in status().held_back_by)
        assert str(tmp_path) in status().held_back_by
        assert status().memory_bytes < 2 << 20 and status().unmatched_prewrites < 4000
        assert not list((tmp_path / "runs").iterdir())
        disk[0] = ROOM
        for transaction in transactions:
            captured.do(world.commit_all, transaction)
        captured.catch_up()
        assert not status().held_back_by and captured.begun == 1
        assert sum(map(len, captured.sink.taken.values())) == 4000
    finally:
        captured.close()


def random_schedule(captured, seed, before_each=lambda: None):
    chosen = random.Random(seed)
    play = Schedule(captured.world, seed)
    for _ in range(60):
        before_each()
        kind = chosen.choice(KINDS)
        what = chosen.choice(KEYS)
        if kind in ("begin", "one phase"):
            keys = chosen.sample(KEYS, chosen.randint(1, 4))
            what = {key: chosen.choice([b"1", b"22", LONG, None]) for key in keys}
        elif kind in ("prewrite", "commit", "calculated", "secondary", "rollback"):
            what = chosen.randrange(4)
        captured.on_loop(play.take(kind, what))
    captured.do(play.finish)


@pytest.mark.slow
def test_locks_of_a_dead_tidb_are_ended_and_one_that_lives_is_named(captured, monkeypatch):
    monkeypatch.setattr(lock_watch, "_STANDSTILL_S", 0.3)
    monkeypatch.setattr(lock_watch, "_LOOK_INTERVAL_S", 0.3)
    world = captured.world
    alive = captured.do(world.begin, {KEYS[1]: b"alive", KEYS[5]: b"alive"})
    captured.do(world.prewrite, alive)
    captured.until(
        lambda: f"transaction {alive.start_ts} " in captured.capture.status().held_back_by
    )
    captured.do(world.commit_all, alive)
    captured.catch_up()
    dead = captured.do(world.begin, {KEYS[2]: b"dead", KEYS[6]: LONG})
    captured.do(world.prewrite, dead)
    for key in dead.changes:
        captured.do(world.store.abandon, key, dead.start_ts)
    captured.do(world.one_phase, {KEYS[3]: b"later"})
    captured.catch_up()
    captured.until(lambda: captured.capture.status().unmatched_prewrites == 0)
    captured.until(lambda: not captured.capture.status().held_back_by)


def test_transactions_that_die_at_any_stage_end_as_their_primary_keys_say(captured, monkeypatch):
    monkeypatch.setattr(lock_watch, "_STANDSTILL_S", 0.1)
    monkeypatch.setattr(lock_watch, "_LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr("sluice.devstack.tidb.store._SMALL_LOCK_TTL_MS", 200)
    world, chosen = captured.world, random.Random(11)
    for _ in range(6):
        for _ in range(5):
            keys = chosen.sample(KEYS, chosen.randint(1, 4))
            values = {key: chosen.choice([b"1", b"22", LONG, None]) for key in keys}
            txn = captured.do(world.begin, values)
            if not txn.changes:
                continue
            stage = chosen.choice(["some keys", "all keys", "committed", "rolled back"])
            if stage == "some keys":
                captured.do(world.prewrite, txn, chosen.randint(1, len(txn.changes)))
            elif stage == "committed":
                captured.do(world.commit, txn)
            else:
                captured.do(world.prewrite, txn)
            if stage == "rolled back":
                captured.do(world.store.rollback, txn.primary, txn.start_ts)
            for key in txn.changes:
                captured.do(world.store.abandon, key, txn.start_ts)
            if chosen.random() < 0.3:
                captured.do(world.changes.split, chosen.choice(KEYS))
        captured.catch_up()
        captured.until(lambda: captured.capture.status().unmatched_prewrites == 0)
        world._locked.clear()


def test_a_tikv_without_multiplexed_change_data_ends_the_capture_and_says_which_version_has_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(streams, "METADATA", (("features", "none-that-it-knows"),))
    captured = Captured(tmp_path)
    try:
        captured.until(lambda: captured.capture.status().failure)
        assert "store 1" in captured.capture.status().failure
        assert "7.5" in captured.capture.status().failure
    finally:
        captured.close()


class Registry:
    """No TiDB server."""

    def range_prefix(self, prefix):
        return SimpleNamespace(items=())


@pytest.mark.slow
def test_a_cluster_that_speaks_tls_is_captured_and_the_check_names_a_wrong_certificate(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("tikv", "tikv")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())],
        authority.path.read_bytes(),
        require_client_auth=True,
    )
    tls = TLS.from_settings(str(authority.path), *map(str, authority.issue("pump", "pump")))
    captured = Captured(tmp_path, credentials=credentials, tls=tls)
    try:
        captured.world.pd.version = "8.5.0"
        captured.do(captured.world.one_phase, dict.fromkeys(KEYS, LONG))
        captured.do(captured.world.changes.break_streams)
        captured.do(captured.world.one_phase, {KEYS[2]: b"again", KEYS[5]: None})
        captured.catch_up()
        ts = captured.do(captured.world.tso)
        found = list(check_capture(captured.pd, Registry(), tls, ts))
        assert [each.hint for each in found if each.hint] == []
        assert sum("streams changes with TLS" in each.text for each in found) == 2
        other = tmp_path / "other"
        other.mkdir()
        stranger = Authority(other)
        wrong = TLS.from_settings(str(authority.path), *map(str, stranger.issue("pump", "pump")))
        refused = [each for each in check_capture(captured.pd, Registry(), wrong, ts) if each.hint]
        assert len(refused) == 2 and all("ssl-cert" in each.hint for each in refused), refused
    finally:
        captured.close()
