"""The reading side of a pump against a real gRPC server."""

import io
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pytest

from sluice.tidb import pb
from sluice.tidb.pumps import Entity, PumpReader, PumpReadError, WindowBounds
from tests.tidb.wire_pump import CLUSTER_ID, Pump, binlog

SCHEMA = pa.schema(
    [("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("payload", pa.large_binary())]
)


@pytest.fixture
def pump():
    pump = Pump("a")
    yield pump
    pump.stop()


@pytest.fixture
def reader(pump):
    with PumpReader(pump.status.host, CLUSTER_ID, timeout_s=60) as reader:
        yield reader


def _batch(first, count, size=10):
    stamps = list(range(first, first + count))
    return pa.record_batch(
        [stamps, [ts - 1 for ts in stamps], [bytes([ts % 256]) * size for ts in stamps]], SCHEMA
    )


def _stream(batches, schema=SCHEMA):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_a_window_comes_out_as_it_went_in_however_it_is_cut(pump, reader, size):
    batches = [_batch(100, 50), _batch(200, 1), _batch(300, 30)]
    data = _stream(batches)
    pump.chunks = lambda request: (data[at : at + size] for at in range(0, len(data), size))
    assert list(reader.read(99, 400)) == batches
    assert (pump.asked.lo, pump.asked.hi, pump.asked.cluster_id) == (99, 400, CLUSTER_ID)


def test_an_empty_window_has_no_batches(pump, reader):
    pump.chunks = lambda request: iter([_stream([])])
    assert list(reader.read(1, 2)) == []


def test_batches_are_there_before_the_stream_is_over(pump, reader):
    proceed = threading.Event()
    first, second = _batch(1, 100_000), _batch(200_000, 100_000)

    def chunks(request):
        whole, start = _stream([first, second]), len(_stream([first]))
        yield whole[:start]
        assert proceed.wait(60)
        yield whole[start:]

    pump.chunks = chunks
    window = reader.read(0, 10**6)
    assert next(window) == first
    proceed.set()
    assert list(window) == [second]


def test_a_pump_that_breaks_off_between_two_batches_is_an_error_and_not_a_short_window(
    pump, reader
):
    def chunks(request):
        yield _stream([_batch(1, 10), _batch(20, 10)])[: len(_stream([_batch(1, 10)])) - 8]
        raise RuntimeError("disk gone")

    pump.chunks = chunks
    with pytest.raises(
        PumpReadError,
        match=rf"pump {pump.status.host}: could not read window \(0, 30\]: .*disk gone",
    ):
        list(reader.read(0, 30))


def test_a_pump_that_stops_politely_in_the_middle_is_an_error_too(pump, reader):
    pump.chunks = lambda request: iter([_stream([_batch(1, 10)])[:-8]])
    with pytest.raises(PumpReadError, match="broke off in the middle"):
        list(reader.read(0, 30))


def test_what_is_no_arrow_stream_is_an_error_that_names_the_pump(pump, reader):
    for data in [[], [b""], [b"hello, this is not Arrow"], [_stream([_batch(1, 1000)])[:-3000]]]:
        pump.chunks = lambda request, data=data: iter(data)
        with pytest.raises(PumpReadError, match=f"pump {pump.status.host}"):
            list(reader.read(0, 30))


def test_offsets_that_lead_out_of_a_batch_are_an_error(pump, reader):
    right, wrong = (struct.pack("<4q", 0, 10, at, 30) for at in (20, 1 << 40))
    data = _stream([_batch(1, 3)])
    assert data.count(right) == 1
    pump.chunks = lambda request: iter([data.replace(right, wrong)])
    with pytest.raises(PumpReadError, match=f"pump {pump.status.host}"):
        list(reader.read(0, 30))


def test_columns_of_other_types_are_an_error(pump, reader):
    schema = SCHEMA.set(2, pa.field("payload", pa.large_string()))
    pump.chunks = lambda request: iter([_stream([_batch(1, 3).cast(schema)], schema)])
    with pytest.raises(PumpReadError, match="with the columns"):
        list(reader.read(0, 30))


def test_data_after_the_stream_is_an_error(pump, reader):
    pump.chunks = lambda request: iter([_stream([_batch(1, 3)]), b" " * (2 << 20)])
    with pytest.raises(PumpReadError, match="after the end"):
        list(reader.read(0, 30))


def test_other_columns_are_an_error(pump, reader):
    pump.chunks = lambda request: iter([_stream([], pa.schema([("a", pa.int64())]))])
    with pytest.raises(PumpReadError, match=r"columns .*'a'"):
        list(reader.read(0, 30))


def test_a_pump_that_falls_silent_is_an_error_in_time(pump):
    pump.chunks = lambda request: iter([_stream([_batch(1, 3)])[:100], None])
    with PumpReader(pump.status.host, CLUSTER_ID, timeout_s=0.4) as reader:
        begin = time.monotonic()
        with pytest.raises(PumpReadError, match=r"nothing came for 0.4 s"):
            list(reader.read(0, 30))
        assert time.monotonic() - begin < 30


def test_a_slow_consumer_is_not_taken_for_a_silent_pump(pump):
    batches = [_batch(1, 10), _batch(20, 10)]
    pump.chunks = lambda request: iter([_stream(batches)])
    with PumpReader(pump.status.host, CLUSTER_ID, timeout_s=1) as reader:
        window = reader.read(0, 30)
        found = [next(window)]
        time.sleep(1.5)
        assert found + list(window) == batches


def test_a_window_that_is_left_half_read_ends_the_call(pump, reader):
    ended = threading.Event()

    def chunks(request):
        try:
            whole = _stream([_batch(1, 10)])
            yield whole[:-8]
            while True:
                yield b""
                time.sleep(0.01)
        finally:
            ended.set()

    pump.chunks = chunks
    window = reader.read(0, 30)
    next(window)
    window.close()
    assert ended.wait(60)


def test_bounds_pass_both_ways(pump, reader):
    pump.bounds = pb.window.BoundsResponse(max_commit_ts=900, hi=800, transactions=7, bytes=70)
    assert reader.bounds(100, 950, 50, 1000, 2000) == WindowBounds(900, 800, 7, 70)
    asked = pump.asked
    assert (asked.cluster_id, asked.lo, asked.fresh_ts, asked.wait_ms) == (CLUSTER_ID, 100, 950, 50)
    assert (asked.max_transactions, asked.max_bytes) == (1000, 2000)
    for wrong in (901, 100):
        pump.bounds = pb.window.BoundsResponse(max_commit_ts=wrong - 1, hi=wrong, transactions=1)
        with pytest.raises(PumpReadError, match="past its own mark"):
            reader.bounds(100, 950)


def test_a_pump_that_is_behind_where_a_window_begins_has_nothing_yet_and_nothing_wrong(
    pump, reader
):
    pump.bounds = pb.window.BoundsResponse(max_commit_ts=60, hi=100)
    assert reader.bounds(100, 950) == WindowBounds(60, 100, 0, 0)


def test_a_pump_without_bulk_reads_is_told_from_one_that_fails():
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with PumpReader(f"127.0.0.1:{port}", CLUSTER_ID) as reader:
        for call in [lambda: reader.bounds(0, 1), lambda: list(reader.read(0, 1))]:
            with pytest.raises(PumpReadError) as caught:
                call()
            assert caught.value.unimplemented
        server.stop(0).wait()
        with pytest.raises(PumpReadError, match=f"127.0.0.1:{port}") as caught:
            reader.bounds(0, 1)
        assert not caught.value.unimplemented


def test_a_wrong_cluster_id_is_named(pump):
    with PumpReader(pump.status.host, 1) as reader:
        for call in [
            lambda: reader.bounds(0, 1),
            lambda: list(reader.read(0, 1)),
            lambda: next(reader.pull(0)),
        ]:
            with pytest.raises(PumpReadError, match="cluster ID are mismatch, 4242 vs 1"):
                call()


def test_pull_gives_transactions_and_fakes_from_where_it_was_asked(pump, reader):
    merged = binlog(pb.binlog.Commit, 10, 11, prewrite_value=b"v")
    fake = binlog(pb.binlog.Rollback, 20, 20)
    old = binlog(pb.binlog.Commit, 30, 31)
    asked = []

    def entities(request):
        asked.append((request.clusterID, request.startFrom.offset))
        yield pb.pump.Entity(
            pos=pb.pump.Pos(), payload=merged, meta=pb.pump.Meta(startTs=10, commitTs=11)
        )
        yield pb.pump.Entity(payload=fake, meta=pb.pump.Meta(startTs=20, commitTs=20))
        yield pb.pump.Entity(payload=old)

    pump.entities = entities
    stream = reader.pull(5)
    assert [next(stream) for _ in range(3)] == [
        Entity(10, 11, merged),
        Entity(20, 20, fake),
        Entity(30, 31, old),
    ]
    assert asked == [(CLUSTER_ID, 5)]
    stream.close()


def test_pull_refuses_what_is_out_of_order(pump, reader):
    pump.entities = lambda request: (
        pb.pump.Entity(payload=b"", meta=pb.pump.Meta(startTs=ts - 1, commitTs=ts))
        for ts in (7, 9, 9)
    )
    with pytest.raises(PumpReadError, match="commit ts 9 after 9"):
        list(reader.pull(0))


def test_pull_ends_with_the_reader_and_breaks_with_the_pump(pump):
    def once_it_is_asked(action):
        asked = threading.Event()
        pump.entities = lambda request: asked.set() or ()
        threading.Thread(target=lambda: asked.wait(60) and action()).start()

    reader = PumpReader(pump.status.host, CLUSTER_ID)
    once_it_is_asked(reader.close)
    assert list(reader.pull(0)) == []
    with PumpReader(pump.status.host, CLUSTER_ID) as other:
        once_it_is_asked(pump.stop)
        with pytest.raises(
            PumpReadError,
            match=f"pump {pump.status.host}: the stream of binlogs after 0 broke at 0",
        ):
            list(other.pull(0))
