"""The pump as its gRPC clients meet it: TiDB, Drainers, and Sluice's own reader.

A real process, etcd and PD.
"""

import gzip
import queue
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sluice.pump_service.calls.pulls import MAX_READERS_PER_HOST, STARTS_PER_S_PER_HOST
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from sluice.tidb import pb
from sluice.tidb.pumps import PumpReader, PumpReadError, WindowBounds, window_from_bytes
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog, request
from tests.pump_service.rawhttp2 import CALL, RawClient, grpc_body


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    site.pump("grpc")
    yield site
    site.close()


@pytest.fixture
def client(site):
    client = Client(site.pumps[0].address)
    yield client
    client.close()


@pytest.fixture
def other(site):
    """A second connection."""
    client = Client(site.pumps[0].address)
    yield client
    client.close()


def test_a_prewrite_and_its_commit_come_out_as_one_merged_binlog(site, client, other):
    start, commit = client.transaction(site.pd, b"rows")
    found = other.pull_commits(commit - 1, 1)[0]
    assert (found.tp, found.start_ts, found.commit_ts) == (pb.binlog.Commit, start, commit)
    assert (found.prewrite_value, found.prewrite_key) == (b"rows", b"k")


def test_the_position_of_a_pull_is_exclusive(site, client, other):
    commits = [client.transaction(site.pd, b"%d" % i)[1] for i in range(3)]
    assert [one.commit_ts for one in other.pull_commits(commits[0], 2)] == commits[1:]


def test_a_pulled_entity_carries_its_timestamps_and_an_empty_position(site, client, other):
    start, commit = client.transaction(site.pd, b"")
    stream = other.pull(commit - 1)
    entity = next(stream).entity
    stream.cancel()
    assert (entity.meta.startTs, entity.meta.commitTs) == (start, commit)
    assert entity.HasField("pos")
    assert entity.pos == pb.pump.Pos()


def test_a_pull_follows_what_is_written_after_it_began(site, client, other):
    stream = other.pull(site.pd.ts())
    written = []
    writer = threading.Timer(0.3, lambda: written.append(client.transaction(site.pd, b"later")))
    writer.start()
    for response in stream:
        found = pb.binlog.Binlog.FromString(response.entity.payload)
        if found.prewrite_value == b"later":
            break
    stream.cancel()
    writer.join()
    assert written[0] == (found.start_ts, found.commit_ts)


def test_a_window_holds_the_prewrites_in_commit_order(site, client):
    lo = site.pd.ts()
    written = [client.transaction(site.pd, b"w%d" % i) for i in range(20)]
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        bounds = reader.bounds(lo, site.pd.ts(), 5000, 1000, 1 << 30)
        assert bounds.transactions == 20
        rows = [row for batch in reader.read(lo, bounds.hi) for row in batch.to_pylist()]
        assert [(row["start_ts"], row["commit_ts"]) for row in rows] == written
        values = [pb.binlog.Binlog.FromString(row["payload"]).prewrite_value for row in rows]
        assert values == [b"w%d" % i for i in range(20)]
        small = reader.bounds(lo, site.pd.ts(), 5000, 7, 1 << 30)
        assert (small.hi, small.transactions) == (written[6][1], 7)
        none = reader.bounds(bounds.hi, bounds.hi, 0, 1000, 1 << 30)
        assert none.hi >= bounds.hi
        assert sum(batch.num_rows for batch in reader.read(bounds.hi, bounds.hi)) == 0


def test_a_small_window_comes_with_its_bounds_and_a_larger_one_does_not(site, client):
    lo = site.pd.ts()
    written = [client.transaction(site.pd, b"s%d" % i) for i in range(20)]
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        bounds = reader.bounds(lo, site.pd.ts(), 5000, 0, 0, 1 << 16)
        (read,) = reader.read(lo, bounds.hi)
        assert window_from_bytes("a", bounds.window, lo, bounds.hi).equals(read)
        middle = written[9][1]
        assert window_from_bytes("a", bounds.window, lo, middle).equals(read.slice(0, 10))
        assert not reader.bounds(lo, site.pd.ts(), 5000, 0, 0, bounds.bytes - 1).window
        assert not reader.bounds(bounds.hi, bounds.hi, 0, 0, 0, 1 << 16).window


@pytest.mark.slow
def test_what_waits_for_a_transaction_is_refused_when_the_pump_leaves(tmp_path):
    site = Site(tmp_path)
    try:
        pump = site.pump("leaving")
        client = Client(pump.address)
        client.write(binlog(0, site.pd.ts()))  # nobody says what becomes of it
        client.close()
        with PumpReader(pump.address, CLUSTER) as reader, ThreadPoolExecutor(1) as threads:
            told = queue.SimpleQueue()
            reader.await_newer(site.pd.ts(), 1, told.put)
            assert told.get(timeout=60) is False
            bounds = threads.submit(reader.bounds, 0, site.pd.ts(), 60_000)
            time.sleep(0.3)  # it waits for the Prewrite's verdict by now
            assert pump.terminate() == 0
            with pytest.raises(PumpReadError, match="UNAVAILABLE"):
                bounds.result(60)
    finally:
        site.close()


def test_a_window_beyond_what_is_complete_is_refused(site, client):
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        with pytest.raises(PumpReadError, match="complete only through"):
            list(reader.read(0, site.pd.ts() + (10**9 << 18)))
        with pytest.raises(PumpReadError, match="ahead of PD's clock"):
            reader.bounds(0, site.pd.ts() + (10**9 << 18), 0, 10, 10)


def test_a_pump_at_rest_leaves_it_to_another_one_to_check_the_timestamp_and_moves_no_mark(
    site, client
):
    client.transaction(site.pd, b"before")
    lo, ahead = site.pd.ts(), site.pd.ts() + (10**9 << 18)
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        asked = 5000, 0, 0, 1 << 16
        while reader.bounds(lo, site.pd.ts(), *asked).max_commit_ts < lo:
            pass  # an earlier test's Prewrite may be open
        found = None
        while found is None:
            found = reader.request_bounds(lo, ahead, *asked, ts_is_checked=True).get()
            reader._unary._again = 0.0  # it was at work still, and refused the timestamp
        assert found == WindowBounds(ahead, ahead, 0, 0)
        assert reader.request_bounds(lo, ahead, *asked).get() is None, (
            "whoever is to check it refuses it"
        )
        reader._unary._again = 0.0
        now = site.pd.ts()
        assert now <= reader.bounds(lo, now, *asked).max_commit_ts < ahead
        start, commit = client.transaction(site.pd, b"after")
        now = site.pd.ts()
        found = reader.request_bounds(lo, ahead, *asked, ts_is_checked=True).get()
        assert (found.max_commit_ts, found.hi, found.transactions) == (ahead, ahead, 1)
        assert window_from_bytes("a", found.window, lo, ahead)["commit_ts"].to_pylist() == [commit]
        assert now <= reader.bounds(lo, now, *asked).max_commit_ts < ahead
        client.write(binlog(0, start := site.pd.ts()))
        now = site.pd.ts()
        assert (
            reader.request_bounds(commit, now, 0, *asked[1:], ts_is_checked=True)
            .get()
            .max_commit_ts
            < now
        )
        client.write(binlog(1, start, site.pd.ts()))


def test_of_what_lies_before_the_pumps_start_it_tells_only_what_it_has_looked_up(site, client):
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        ahead = site.pd.ts() + (10**9 << 18)
        assert reader.request_bounds(1, ahead, 0, 0, 0, 0, ts_is_checked=True).get() is None


def test_bounds_wait_for_an_open_prewrite_no_longer_than_asked(site, client):
    start = site.pd.ts()
    client.write(binlog(0, start))
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        ts = site.pd.ts()
        began = time.monotonic()
        assert reader.bounds(0, ts, 300, 10**6, 1 << 40).max_commit_ts < ts
        assert 0.25 < time.monotonic() - began < 30
        client.write(binlog(1, start, site.pd.ts()))
        assert reader.bounds(0, ts, 5000, 10**6, 1 << 40).max_commit_ts >= ts


def _status(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()


def test_a_wrong_cluster_id_is_refused_by_every_call(site, client, other):
    text = f"cluster ID are mismatch, 7 vs {CLUSTER}"
    assert _status(lambda: client.write(binlog(0, site.pd.ts()), cluster_id=7)) == ("UNKNOWN", text)
    assert _status(lambda: next(other.pull(0, cluster_id=7))) == ("UNKNOWN", text)
    with (
        PumpReader(site.pumps[0].address, 7) as reader,
        pytest.raises(PumpReadError, match="cluster ID are mismatch"),
    ):
        reader.bounds(0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"\xff\xff\xff", "payload of 3 bytes is no valid Binlog: .* begins with ff ff ff"),
        (b"not a binlog at all", "payload of 19 bytes"),
        (binlog(0, 5)[:3], "no valid Binlog"),
        (b"\x08\x07" + binlog(0, 5)[2:], "its type is unknown"),
        (b"\x08\x03" + binlog(0, 5)[2:], "its type 3 is not in use"),
        (binlog(1, 500, 400), "commit_ts 400 is not above its start_ts 500"),
        (binlog(0, -5), "negative"),
        (b"\x92\x06\x03abc", "neither type nor timestamps"),
    ],
)
def test_a_payload_that_is_no_binlog_is_refused_with_what_is_wrong(site, client, payload, named):
    code, text = _status(lambda: client.write(payload))
    assert code == "UNKNOWN"
    assert re.search(named, text), text
    client.transaction(site.pd, b"the pump goes on")


def test_a_request_that_is_no_request_is_refused(client):
    code, text = _status(lambda: client.write_raw(b"\xff\xff\xff", timeout=60))
    assert (code, "no WriteBinlogReq" in text) == ("UNKNOWN", True)


def test_fields_in_another_order_are_understood(site, client, other):
    start, commit = site.pd.ts(), site.pd.ts()
    for tp, c in ((0, 0), (1, commit)):
        parts = [
            pb.binlog.Binlog(commit_ts=c),
            pb.binlog.Binlog(prewrite_value=b"odd"),
            pb.binlog.Binlog(start_ts=start),
        ]
        payload = b"".join(part.SerializeToString() for part in [*parts, pb.binlog.Binlog(tp=tp)])
        message = (
            b"\x12"
            + bytes([len(payload)])
            + payload
            + pb.pump.WriteBinlogReq(clusterID=CLUSTER).SerializeToString()
        )
        client.write_raw(message, timeout=60)
    assert other.pull_commits(commit - 1, 1)[0].start_ts == start


def test_a_probe_succeeds_and_writes_nothing(client, site):
    before = site.folder.joinpath("grpc", "value", "000000.vlog").stat().st_size
    client.write(b"")
    client.write(binlog(0, 0, key=b""))
    after = site.folder.joinpath("grpc", "value", "000000.vlog").stat().st_size
    assert after - before in (0, *(n * 38 for n in range(1, 6)))  # a fake binlog may come between


def test_a_transaction_of_3_mb_comes_out_whole(site, client, other):
    value = bytes(range(256)) * 12_000
    _, commit = client.transaction(site.pd, value)
    assert other.pull_commits(commit - 1, 1)[0].prewrite_value == value


def test_256_concurrent_callers_are_all_answered_and_stored(site, client, other):
    lo = site.pd.ts()
    with ThreadPoolExecutor(256) as pool:
        written = list(pool.map(lambda i: client.transaction(site.pd, b"c%d" % i), range(512)))
    commits = sorted(commit for _, commit in written)
    assert [one.commit_ts for one in other.pull_commits(lo, 512)] == commits


def test_a_cancelled_call_leaves_the_connection_usable(site, client):
    futures = [
        client.write_raw.future(request(binlog(2, site.pd.ts())), timeout=60) for _ in range(50)
    ]
    for future in futures[::2]:
        future.cancel()
    for future in futures[1::2]:
        assert future.result() == b""
    client.transaction(site.pd, b"")


def test_metadata_and_long_headers_are_accepted(site, client):
    metadata = [("x-long", "v" * 7000), ("x-data-bin", bytes(range(256)))]
    client.write_raw(request(binlog(2, site.pd.ts())), timeout=60, metadata=metadata)


def test_a_gzip_request_is_unimplemented_on_the_lane_and_plain_calls_go_on(site, client):
    client.write(b"")
    call = lambda: client.write_raw(  # noqa: E731
        request(binlog(0, site.pd.ts(), value=b"a" * 5000)),
        timeout=60,
        compression=grpc.Compression.Gzip,
    )
    assert _status(call)[0] == "UNIMPLEMENTED"
    client.transaction(site.pd, b"")


def test_a_drainer_with_gzip_is_served(site, client, other):
    start, commit = client.transaction(site.pd, b"z" * 5000)
    asked = pb.pump.PullBinlogReq(clusterID=CLUSTER, startFrom=pb.pump.Pos(offset=commit - 1))
    pull = other.channel.unary_stream(
        "/binlog.Pump/PullBinlogs",
        pb.pump.PullBinlogReq.SerializeToString,
        pb.pump.PullBinlogResp.FromString,
    )
    stream = pull(asked, timeout=60, compression=grpc.Compression.Gzip)
    assert next(stream).entity.meta.startTs == start
    stream.cancel()


def test_what_a_drainer_with_gzip_gets_is_compressed(site, client):
    _, commit = client.transaction(site.pd, b"z" * 5000)
    asked = pb.pump.PullBinlogReq(
        clusterID=CLUSTER, startFrom=pb.pump.Pos(offset=commit - 1)
    ).SerializeToString()
    raw = RawClient(site.pumps[0].address)
    path = (b":path", b"/binlog.Pump/PullBinlogs")
    headers = (
        *CALL[:2],
        path,
        *CALL[3:],
        (b"grpc-encoding", b"gzip"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    )
    raw.send(f.frame(f.HEADERS, f.END_HEADERS, 1, encode_headers(headers)))
    raw.body(1, grpc_body(gzip.compress(asked), compressed=1))
    end = time.monotonic() + 60
    while (size := len(body := raw.answers[1].body if 1 in raw.answers else b"")) < 5 or (
        size < 5 + int.from_bytes(body[1:5], "big")
    ):
        assert time.monotonic() < end and raw.read(5), raw.frames
    message = body[5 : 5 + int.from_bytes(body[1:5], "big")]
    raw.close()
    assert (body[0], len(message) < 500) == (1, True)
    assert (
        pb.pump.PullBinlogResp.FromString(gzip.decompress(message)).entity.meta.commitTs == commit
    )


@pytest.mark.parametrize("first", ["write", "pull", "bounds", "read"])
def test_one_connection_may_mix_all_calls(site, client, first):
    """Whatever a connection's first call makes of it, the others work on it, too."""
    lo = site.pd.ts()
    if first == "write":
        client.write(b"")
    elif first == "pull":
        next(client.pull(0))
    bounds = client.channel.unary_unary(
        "/sluice.Window/Bounds",
        pb.window.BoundsRequest.SerializeToString,
        pb.window.BoundsResponse.FromString,
    )
    if first == "bounds":
        bounds(pb.window.BoundsRequest(cluster_id=CLUSTER, lo=lo, fresh_ts=lo), timeout=60)
    if first == "read":
        read = client.channel.unary_stream(
            "/sluice.Window/Read",
            pb.window.ReadRequest.SerializeToString,
            pb.window.ReadResponse.FromString,
        )
        assert list(read(pb.window.ReadRequest(cluster_id=CLUSTER), timeout=60))
    written = [client.transaction(site.pd, b"m" * 50_000) for _ in range(20)]
    assert [one.commit_ts for one in client.pull_commits(lo, 20)] == [
        commit for _, commit in written
    ]
    stream = client.pull(lo)
    assert next(stream).entity.payload
    client.transaction(site.pd, b"while a pull is open")
    stream.cancel()
    asked = pb.window.BoundsRequest(cluster_id=CLUSTER, lo=lo, fresh_ts=site.pd.ts(), wait_ms=2000)
    assert bounds(asked, timeout=60).transactions >= 20
    asked.cluster_id = 7
    assert _status(lambda: bounds(asked, timeout=60)) == (
        "FAILED_PRECONDITION",
        f"cluster ID are mismatch, 7 vs {CLUSTER}",
    )
    unknown = client.channel.unary_unary("/binlog.Pump/Nothing")
    assert _status(lambda: unknown(b"", timeout=60))[0] == "UNIMPLEMENTED"


def test_a_slow_reader_of_a_bridged_stream_is_waited_for(site, client):
    lo = site.pd.ts()
    client.write(b"")
    written = [client.transaction(site.pd, b"s" * 200_000)[1] for _ in range(40)]
    stream = client.pull(lo)
    seen = []
    for response in stream:
        found = response.entity
        if found.meta.startTs != found.meta.commitTs:
            seen.append(found.meta.commitTs)
            assert len(found.payload) > 200_000
        if len(seen) in (1, 20):
            time.sleep(0.5)
        if len(seen) == 40:
            break
    stream.cancel()
    assert seen == written


@pytest.mark.slow
def test_many_readers_at_once_each_see_everything(site, client):
    # until this address may start so many at once again
    time.sleep(MAX_READERS_PER_HOST / STARTS_PER_S_PER_HOST)
    lo = site.pd.ts()
    readers = [Client(site.pumps[0].address) for _ in range(12)]
    try:
        with ThreadPoolExecutor(12) as pool:
            pulls = [pool.submit(reader.pull_commits, lo, 100) for reader in readers]
            written = [client.transaction(site.pd, b"x")[1] for _ in range(100)]
            for pull in pulls:
                assert [one.commit_ts for one in pull.result(60)] == written
    finally:
        for reader in readers:
            reader.close()
    until = time.monotonic() + 60
    while "the reader" not in (text := site.pumps[0].text()) or text.count(
        "pulls binlogs"
    ) > text.count("is gone"):
        assert time.monotonic() < until, "a reader that went away still holds its stream"
        time.sleep(0.1)


def test_a_reader_is_told_of_a_transaction_as_soon_as_it_is_committed(site, client):
    client.write(b"")
    _, last = client.transaction(site.pd, b"before")
    answers = queue.SimpleQueue()
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        reader.await_newer(last - 1, 60_000, answers.put)
        assert answers.get(timeout=60) is True
        reader.await_newer(last, 1, answers.put)
        assert answers.get(timeout=60) is False
        while True:  # it may have waited in vain before the transaction came
            reader.await_newer(last, 1_000, answers.put)
            client.transaction(site.pd, b"more")
            if answers.get(timeout=60):
                break
    with PumpReader(site.pumps[0].address, 7) as stranger:
        stranger.await_newer(0, 1, answers.put)
        assert answers.get(timeout=60) is None
    stranger.await_newer(0, 1, answers.put)
    assert answers.get(timeout=60) is None, "it is closed"


def test_bounds_that_are_asked_for_side_by_side_are_those_of_the_call(site, client):
    lo = site.pd.ts()
    for size in (10, 200):
        client.transaction(site.pd, b"s" * size)
    with PumpReader(site.pumps[0].address, CLUSTER) as reader:
        asked = lo, site.pd.ts(), 5000, 0, 0, 1 << 16
        begun = [reader.request_bounds(*asked) for _ in range(3)]
        assert [one.get() for one in begun] == [reader.bounds(*asked)] * 3
        # refused: bounds says why
        assert reader.request_bounds(lo, site.pd.ts() + (10**9 << 18)).get() is None


_GZIP = (b"grpc-encoding", b"gzip")


def _path(path):
    return *CALL[:2], (b":path", path), *CALL[3:]


@pytest.mark.parametrize(
    "path", [b"/binlog.Pump/PullBinlogs", b"/sluice.Window/Bounds", b"/binlog.Cistern/Notify"]
)
def test_a_compressed_request_is_expanded_to_64_kib_at_most(site, path):
    raw = RawClient(site.pumps[0].address)
    bomb = gzip.compress(bytes(32 << 20))
    assert len(bomb) < 64 << 10
    raw.send(f.frame(f.HEADERS, f.END_HEADERS, 1, encode_headers((*_path(path), _GZIP))))
    raw.body(1, grpc_body(bomb, compressed=1))
    answer = raw.answer(1)
    assert (answer.status, "larger than max" in answer.headers["grpc-message"]) == ("8", True)
    raw.close()


def test_the_request_of_a_call_but_write_binlog_is_refused_by_its_announced_size(site):
    raw = RawClient(site.pumps[0].address)
    head = encode_headers((*_path(b"/sluice.Window/Bounds"), _GZIP))
    raw.send(
        f.frame(f.HEADERS, f.END_HEADERS, 1, head),
        f.frame(f.DATA, 0, 1, b"\1" + (1 << 20).to_bytes(4, "big")),
    )
    answer = raw.answer(1)
    assert (answer.status, "larger than max" in answer.headers["grpc-message"]) == ("8", True)
    raw.close()


def test_a_write_is_bounded_the_same_whatever_call_came_first(site):
    raw = RawClient(site.pumps[0].address)
    raw.call(1, b"", _path(b"/binlog.Cistern/Notify"))
    assert raw.answer(1).status == "0"
    raw.send(f.frame(f.HEADERS, f.END_HEADERS, 3, encode_headers((*CALL, _GZIP))))
    raw.body(3, grpc_body(gzip.compress(request(b"")), compressed=1))
    assert raw.answer(3).status == "12"
    raw.close()


def test_more_body_than_was_announced_ends_the_call(site):
    raw = RawClient(site.pumps[0].address)
    raw.send(f.frame(f.HEADERS, f.END_HEADERS, 1, encode_headers(CALL)))
    raw.send(f.frame(f.DATA, 0, 1, b"\0" + (10).to_bytes(4, "big") + bytes(11)))
    assert raw.answer(1).reset == f.PROTOCOL_ERROR
    raw.close()


def test_what_no_pump_serves_is_unimplemented(site):
    raw = RawClient(site.pumps[0].address)
    raw.call(1, b"", _path(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"))
    assert raw.answer(1).status == "12"
    raw.close()
