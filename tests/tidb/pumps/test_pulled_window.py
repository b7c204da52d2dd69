"""Windows through PullBinlogs: whole, in order, and over only when the pump says that it is past
them.
"""

from __future__ import annotations

import http.server
import threading
import time

import pytest

from sluice.tidb import pb
from sluice.tidb.pumps import (
    CommitsGoneError,
    PullFollower,
    PumpReader,
    PumpReadError,
    as_prewrite,
    check_not_purged,
    pulled_window,
)
from tests.tidb.wire_pump import CLUSTER_ID, Pump, binlog


@pytest.fixture
def pump():
    pump = Pump("a")
    yield pump
    pump.stop()


@pytest.fixture
def reader(pump):
    with PumpReader(pump.status.host, CLUSTER_ID, timeout_s=60) as reader:
        yield reader


def merged(commit_ts, value=b"v"):
    payload = binlog(pb.binlog.Commit, commit_ts - 1, commit_ts, prewrite_value=value)
    return pb.pump.Entity(
        payload=payload, meta=pb.pump.Meta(startTs=commit_ts - 1, commitTs=commit_ts)
    )


def fake(ts):
    return pb.pump.Entity(
        payload=binlog(pb.binlog.Rollback, ts, ts), meta=pb.pump.Meta(startTs=ts, commitTs=ts)
    )


def serve(pump, entities):
    pump.entities = lambda request: (
        e for e in entities if e.meta.commitTs > request.startFrom.offset
    )


def commits(batches):
    return [ts for batch in batches for ts in batch["commit_ts"].to_pylist()]


@pytest.mark.parametrize("last", [merged(30), fake(31), merged(99)])
def test_a_window_is_over_when_a_timestamp_at_or_beyond_its_end_has_come(pump, reader, last):
    serve(pump, [merged(10), fake(15), merged(20), last])
    began = time.monotonic()
    assert commits(pulled_window(reader, 0, 30)) == [10, 20] + [30] * (last.meta.commitTs == 30)
    assert time.monotonic() - began < 40  # not by the time-out


def test_silence_is_an_error_and_not_the_end_of_a_window(pump):
    serve(pump, [merged(10), merged(20)])
    with PumpReader(pump.status.host, CLUSTER_ID, timeout_s=60) as reader:
        next(iter(pulled_window(reader, 0, 20)))  # it is connected, and what follows comes at once
        reader.timeout_s = 1
        with pytest.raises(PumpReadError, match="broke at 20: nothing came for 1 s"):
            list(pulled_window(reader, 0, 30))


def test_a_pump_that_ends_the_stream_is_an_error_and_not_the_end_of_a_window(pump, reader):
    for error in (None, RuntimeError("going down")):

        def entities(request, error=error):
            yield merged(10)
            if error:
                raise error
            end.set()

        end = threading.Event()
        pump.entities = entities
        if error is None:
            threading.Thread(
                target=lambda end=end: (end.wait(60), time.sleep(0.2), pump.stop()), daemon=True
            ).start()
        with pytest.raises(
            PumpReadError,
            match=f"pump {pump.status.host}: the stream of binlogs after 0 broke at 10",
        ):
            list(pulled_window(reader, 0, 30))
        if error is None:
            pump.start()


def test_a_window_comes_in_batches_of_bounded_size(pump, reader):
    serve(pump, [*(merged(ts, b"x" * 2**20) for ts in range(1, 11)), fake(100)])
    batches = list(pulled_window(reader, 0, 50))
    assert commits(batches) == list(range(1, 11))
    assert len(batches) == 3 and batches[0].schema.names == ["commit_ts", "start_ts", "payload"]


def test_a_merged_binlog_turns_back_into_its_prewrite_however_it_is_written():
    whole = pb.binlog.Binlog(
        tp=1,
        start_ts=5,
        commit_ts=6,
        prewrite_value=b"value",
        ddl_query=b"q",
        ddl_job_id=3,
        ddl_schema_state=5,
    )
    usual = whole.SerializeToString()
    other = usual[2:] + usual[:2]  # tp last
    for payload in (usual, other):
        found = pb.binlog.Binlog.FromString(as_prewrite(payload))
        assert found.tp == pb.binlog.Prewrite
        found.tp = 1
        assert found == whole


@pytest.mark.parametrize(
    "payload", [b"\xff\xff", pb.binlog.Binlog(tp=2, start_ts=5, commit_ts=6).SerializeToString()]
)
def test_what_is_no_commit_is_refused_by_name(payload):
    with pytest.raises(PumpReadError, match="pump h:1 sent with commit ts 6 what is no commit"):
        as_prewrite(payload, "h:1", 6)


@pytest.fixture
def metrics():
    """A /metrics page whose text a test sets."""

    class Handler(http.server.BaseHTTPRequestHandler):
        text = ""

        def do_GET(self):
            assert self.path == "/metrics"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.text.encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with PumpReader(f"127.0.0.1:{server.server_port}", CLUSTER_ID) as reader:
        yield reader, Handler
    server.shutdown()
    server.server_close()


def test_commits_that_the_pump_has_purged_are_missed_by_its_own_metric(metrics):
    reader, page = metrics
    gc_ms = 1_700_000_000_123
    page.text = (
        # 1.700000000123e+12
        f"# HELP binlog_pump_storage_gc_ts x\nbinlog_pump_storage_gc_ts {float(gc_ms)!r}\n"
    )
    check_not_purged(reader, gc_ms << 18)
    check_not_purged(reader, 0)
    with pytest.raises(CommitsGoneError, match=f"has purged everything through {gc_ms << 18}"):
        check_not_purged(reader, (gc_ms - 1) << 18 | 5)
    page.text = "binlog_pump_storage_done_gc_ts 5\n"
    with pytest.raises(PumpReadError, match="doesn't show what the pump has purged: there is no"):
        check_not_purged(reader, 1)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def follow(pump):
    made = []

    def follow(lo=0, transactions=10, size=10**6):
        made.append(PullFollower(PumpReader(pump.status.host, CLUSTER_ID), lo, transactions, size))
        return made[-1]

    yield follow
    for one in made:
        one.close()


def test_bounds_are_what_has_arrived_and_fakes_move_them_on(pump, follow):
    serve(pump, [merged(10, b"x" * 50), merged(20, b"x" * 50), fake(25)])
    follower = follow()
    wait_for(lambda: follower.bounds(0).hi == 25)
    found = follower.bounds(0)
    assert (found.max_commit_ts, found.hi, found.transactions) == (
        25,
        25,
        2,
    ) and 100 < found.bytes < 200
    assert follower.bounds(10).transactions == 1
    assert follower.follows(10) and not follower.follows(9)
    assert (follower.bounds(25).hi, follower.bounds(25).transactions) == (25, 0)


def test_limits_cut_bounds_and_one_transaction_always_fits(pump, follow):
    serve(pump, [merged(ts, b"x" * (5000 if ts == 40 else 50)) for ts in range(10, 100, 10)])
    follower = follow(transactions=2, size=1000)
    lo, windows = 0, []
    while lo < 90:
        found = follower.bounds(lo)
        assert found.transactions <= 2
        if found.transactions:
            windows.append((found.hi, found.transactions))
            lo = found.hi
    assert windows[-1][0] == 90 and 40 in [hi for hi, _ in windows]
    assert sum(count for _, count in windows) == 9


def test_a_backlog_is_not_read_further_than_a_few_windows_ahead(pump, follow):
    sent = 0

    def entities(request):
        nonlocal sent
        for ts in range(1, 100_000):
            sent += 1
            yield merged(ts, b"x" * 20_000)

    pump.entities = entities
    follower = follow(transactions=10)
    wait_for(lambda: follower.bounds(0).transactions == 10)
    before = -1
    while before != sent:
        before = sent
        time.sleep(0.5)
    assert sent < 1500  # what the connection buffers comes on top
    lo = 0
    for _ in range(20):
        wait_for(lambda: follower.bounds(lo).transactions == 10)
        lo = follower.bounds(lo).hi
    assert lo == 200


def test_a_follower_tells_that_its_stream_broke(pump, follow):
    serve(pump, [merged(10)])
    follower = follow()
    wait_for(lambda: follower.bounds(0).hi == 10)
    pump.stop()

    def broke():
        try:
            follower.bounds(0)
        except PumpReadError as error:
            return "broke at 10" in str(error)

    wait_for(broke)


def test_what_cannot_be_read_ends_following_with_an_error_not_with_silence(pump, follow):
    pump.entities = lambda request: iter([merged(10), pb.pump.Entity(payload=b"\xff\xff")])
    follower = follow()

    def failed():
        try:
            follower.bounds(0)
        except PumpReadError as error:
            return "after 10" in str(error)
        return False

    wait_for(failed)
