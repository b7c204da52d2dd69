"""The lane's bounds on memory and streams, made small: a lane over a real store in this process."""

import time

import pytest

from sluice.pump_service.grpc_fastpath import FastPathLimits
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from tests.pump_service.pumpkit import binlog, request
from tests.pump_service.rawhttp2 import CALL, RawClient, grpc_body
from tests.pump_service.served_lane import ServedLane

_BLOCK = encode_headers(CALL)
_PROBE = request(b"")
_TS = 1_700_000_000_000 << 18


@pytest.fixture
def serve(tmp_path):
    made = []

    def start(**limits):
        made.append(ServedLane(tmp_path / "data", FastPathLimits(**limits)))
        made[-1].client.call(1, _PROBE)
        assert made[-1].client.answer(1).status == "0"
        return made[-1]

    yield start
    for served in made:
        served.close()


def _headers(stream):
    return f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK)


def test_a_message_above_the_limit_is_refused_by_its_announced_size(serve):
    client = serve(message=1000).client
    client.send(_headers(3), f.frame(f.DATA, 0, 3, b"\0" + (1001).to_bytes(4, "big") + b"x"))
    answer = client.answer(3)
    assert answer.status == "8"
    assert "larger than max (1001 vs. 1000 bytes" in answer.headers["grpc-message"]
    client.call(5, b"x" * 1001)
    assert client.answer(5).status == "8"


def test_calls_above_the_limit_of_streams_are_refused_unprocessed(serve):
    client = serve(streams=4).client
    client.send(*(_headers(stream) for stream in (3, 5, 7, 9, 11)))
    assert client.answer(11).reset == f.REFUSED_STREAM
    client.body(3, grpc_body(_PROBE))
    assert client.answer(3).status == "0"
    client.call(13, _PROBE)
    assert client.answer(13).status == "0"


def test_more_bytes_than_the_window_allows_reset_the_stream_and_nothing_else(serve):
    client = serve(stream_window=20_000, partial=20_000, share=0).client
    big = b"\0" + (50_000).to_bytes(4, "big")
    client.send(_headers(3), _headers(5))
    client.send(f.frame(f.DATA, 0, 3, big + b"x" * 5000))
    # 5 isn't the oldest and there is pressure (it holds 11,000 bytes): it gets no new window.
    client.send(f.frame(f.DATA, 0, 5, big + b"y" * 11_000), f.frame(f.DATA, 0, 5, b"y" * 9_000))
    assert client.answer(5).reset == f.FLOW_CONTROL_ERROR
    client.call(7, _PROBE)
    assert client.answer(7).status == "0"


def test_under_pressure_the_oldest_message_gets_room_and_then_the_next(serve):
    served = serve(stream_window=20_000, partial=50_000, share=0)
    client = served.client
    messages = {stream: request(binlog(0, _TS + stream, value=b"v" * 60_000)) for stream in (3, 5)}
    rest = {stream: grpc_body(message) for stream, message in messages.items()}
    window = dict.fromkeys(rest, 20_000)
    client.send(_headers(3), _headers(5))
    ended = []
    seen = len(client.frames)
    while rest:
        for stream in list(rest):
            part = rest[stream][: min(window[stream], 5000)]
            if part:
                rest[stream] = rest[stream][len(part) :]
                window[stream] -= len(part)
                client.send(f.frame(f.DATA, 0 if rest[stream] else f.END_STREAM, stream, part))
            if not rest[stream]:
                del rest[stream]
                ended.append(stream)
        client.read(0.3 if all(window[stream] == 0 for stream in rest) else 0.001)
        for kind, _, stream, payload in client.frames[seen:]:
            if kind == f.WINDOW_UPDATE and stream in window:
                window[stream] += int.from_bytes(payload, "big")
        seen = len(client.frames)
    assert ended == [3, 5]
    assert [client.answer(stream).status for stream in (3, 5)] == ["0", "0"]
    until = time.monotonic() + 60
    while served.store.lookup(_TS + 5) is None:  # the index follows the answer
        assert time.monotonic() < until
        time.sleep(0.01)


def test_of_all_connections_together_one_message_may_grow_to_the_largest_size(serve):
    served = serve(message=300_000, partial=50_000, share=0, stream_window=1 << 20)
    begun = b"\0" + (300_000).to_bytes(4, "big") + bytes(10_000)
    clients = [served.client, *(RawClient(served.address) for _ in range(9))]
    for client in clients:
        client.send(_headers(3), f.frame(f.DATA, 0, 3, begun))
    for _ in range(28):
        for client in clients:
            if not any(kind == f.RST_STREAM for kind, *_ in client.frames):
                client.send(f.frame(f.DATA, 0, 3, bytes(10_000)))
                client.read(0.01)
    until = time.monotonic() + 60
    while served.context.uploads.size < 290_005:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert served.context.uploads.size <= 300_005 + 50_000
    refused = [
        client for client in clients if any(kind == f.RST_STREAM for kind, *_ in client.frames)
    ]
    assert len(refused) >= len(clients) - 5
    for client in clients[1:]:
        client.close()


def test_an_upload_that_waits_for_room_gets_it_when_the_one_before_it_ends(serve):
    client = serve(stream_window=20_000, partial=30_000, share=0).client
    first, second = (grpc_body(request(binlog(0, _TS + n, value=b"v" * 30_000))) for n in (0, 1))
    client.send(_headers(3), _headers(5), f.frame(f.DATA, 0, 3, first[:100]))
    client.send(f.frame(f.DATA, 0, 5, second[:16_000]), f.frame(f.PING, 0, 0, b"12345678"))
    client.wait_frame(f.PING)
    assert (f.WINDOW_UPDATE, 5) not in {(kind, stream) for kind, _, stream, _ in client.frames}
    client.body(3, first[100:16_000], end=False)
    client.body(3, first[16_000:])
    assert client.answer(3).status == "0"
    assert (f.WINDOW_UPDATE, 5) in {(kind, stream) for kind, _, stream, _ in client.frames}
    client.body(5, second[16_000:])
    assert client.answer(5).status == "0"


def test_a_full_queue_stops_reading_until_the_store_has_caught_up_and_loses_no_call(serve):
    served = serve(queued=1)  # every batch fills it
    client = served.client
    calls = []
    for number in range(1000):
        message = request(binlog(2, _TS + number, value=b"v" * 200))
        calls += [
            _headers(3 + 2 * number),
            f.frame(f.DATA, f.END_STREAM, 3 + 2 * number, grpc_body(message)),
        ]
    for at in range(0, len(calls), 50):
        client.send(*calls[at : at + 50])
    for number in range(1000):
        assert client.answer(3 + 2 * number).status == "0"
    until = time.monotonic() + 60
    while served.context.queued or served.context.full or served.store.stats().records < 1000:
        assert time.monotonic() < until, (
            served.context.queued,
            served.context.full,
            served.store.stats(),
        )
        time.sleep(0.01)
    assert served.store.stats().records == 1000


def test_an_error_of_the_store_is_the_error_of_each_call(serve):
    served = serve()
    served.store.close()
    for stream in (3, 5):
        served.client.call(stream, request(binlog(0, _TS + stream)))
    for stream in (3, 5):
        answer = served.client.answer(stream)
        assert (answer.status, "closed" in answer.headers["grpc-message"]) == ("2", True)


def test_draining_answers_what_was_sent_and_then_says_goodbye(serve):
    served = serve()
    served.client.call(3, request(binlog(2, _TS)))
    served.run(served.context.drain(3))
    assert served.client.answer(3).status == "0"
    served.client.wait_closed()
    assert served.client.goaway == (f.NO_ERROR, "")
    assert [kind for kind, *_ in served.client.frames].count(f.GOAWAY) == 2
