"""What one client can take of a pump is bounded: streams, uploads, readers, connections, pages."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import socket
import threading
import time
import weakref
from unittest import mock

import httpx
import psutil
import pytest

from sluice.pump_service.calls import pulls
from sluice.pump_service.cluster import ClientLiveness
from sluice.pump_service.config import Security
from sluice.pump_service.grpc_fastpath import FastPathLimits, FastPathServer, allowance
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.allowance import (
    FrameRateLimit,
    PausedReads,
    SharedFrameBudget,
    StrangersShare,
)
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from sluice.pump_service.grpc_fastpath.sender import TRANSPORT_BYTES, FlowControlledSender
from sluice.pump_service.http import Http1Connection, HttpResponse
from sluice.pump_service.ingest import WriteRejected
from sluice.pump_service.listener import Listener
from sluice.tidb import pb
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog, request
from tests.pump_service.rawhttp2 import CALL, RawClient, grpc_body

_TS = 1_700_000_000_000 << 18
_BLOCK = encode_headers(CALL)
_OTHER_BLOCK = encode_headers((*CALL[:2], (b":path", b"/sluice.Window/Read"), *CALL[3:]))
_ORIGINS = ClientLiveness(tuple, lambda _: False)
_PROBE = request(b"")
_PULL = tuple((k, b"/binlog.Pump/PullBinlogs" if k == b":path" else v) for k, v in CALL)
_UNKNOWN = tuple((k, b"/nothing/Served" if k == b":path" else v) for k, v in CALL)
_REFUSED = b"refused"
_OTHER = tuple((k, b"/sluice.Window/Read" if k == b":path" else v) for k, v in CALL)


class _Ingest:
    """Takes everything and answers at once."""

    def admit(self, data, begin=0, end=None):
        if data[begin:end] == _REFUSED:
            raise WriteRejected("refused")

    def fast_admission(self):
        return b"\x08", 0, False, tuple  # nothing is

    def connect(self, ip):
        return _ORIGINS.connect(ip)

    def observe(self, seconds, calls, ok):
        pass

    def count_rejected(self):
        pass


@contextlib.contextmanager
def served(limits=None, http1=None, descriptors=1000, answer=None):
    """A front in a loop of its own: (address, front, context).

    `answer(lane, stream)` answers other calls than WriteBinlog; without it they never end.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def make():
        front = Listener(http1 or (lambda _: pytest.fail("no HTTP/1 here")), Security())

        async def call(lane, stream):  # a call that never ends
            await (answer(lane, stream) if answer else asyncio.Event().wait())

        def bridge(lane, stream, headers, body):
            return loop.create_task(call(lane, stream))

        context = FastPathServer(loop, _Ingest(), limits or FastPathLimits(), bridge, descriptors)
        front.use(context)
        host, port = await front.listen("127.0.0.1", 0, None)
        await front.serve()
        return f"{host}:{port}", front, context

    address, front, context = run(make())

    async def end():
        front.stop_accepting()
        front.close_all()
        await asyncio.sleep(0.05)

    try:
        yield address, front, context
    finally:
        run(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def _headers(stream, block=_BLOCK):
    return f.frame(f.HEADERS, f.END_HEADERS, stream, block)


def _close_idle(context, now):
    asyncio.run_coroutine_threadsafe(context.close_idle(now), context.loop).result(60)


def _eventually(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


# -- a client that takes no answers


@pytest.mark.parametrize("readers", [1, 8])
def test_a_message_waits_in_one_piece_while_its_reader_takes_nothing(readers):
    message, sent = bytes(64 << 20), []

    async def answer(lane, stream):
        lane.sender.out.append(f.header_frames(stream, f.RESPONSE_HEADERS, end_stream=False))
        lane.sender.queue(stream, message)
        lane.flush()
        await lane.sent(stream)
        sent.append(lane)
        lane.sender.finish(stream, f.header_frames(stream, f.OK_TRAILERS, end_stream=True))
        lane.ended(stream)

    windows = f.settings({f.SETTING_INITIAL_WINDOW_SIZE: f.MAX_WINDOW})
    more = f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW)
    with served(answer=answer) as (address, _, context):
        clients = [RawClient(address, windows + more) for _ in range(readers)]
        for client in clients:
            client.call(1, b"", _OTHER)
        _eventually(
            lambda: (
                len(context.lanes) == readers
                and all(lane._wire._writable is not None for lane in context.lanes)
            )
        )
        for lane in context.lanes:
            unsent = lane._wire.transport.get_write_buffer_size()
            assert 0 < unsent <= TRANSPORT_BYTES + 1024  # with frames' heads
            assert lane._place.size >= lane._bytes + unsent
        assert not sent
        for number, client in enumerate(clients, 1):
            received = 0
            client.sock.settimeout(0.05)
            while len(sent) < number or received < len(message):  # a close cuts off what is unread
                with contextlib.suppress(TimeoutError):
                    received += len(client.sock.recv(1 << 20))
            client.close()


def test_calls_whose_answers_the_client_does_not_take_count_as_open():
    with served(FastPathLimits(streams=10)) as (address, _, _context):
        client = RawClient(address, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
        for stream in range(1, 41, 2):
            client.call(stream, _PROBE)
        assert client.answer(39).reset == f.REFUSED_STREAM
        assert client.answer(21).reset == f.REFUSED_STREAM  # the eleventh
        assert client.answers[1].headers and not client.answers[1].ended
        client.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 65535}))
        for stream in range(1, 21, 2):
            assert client.answer(stream).status == "0"
        client.call(41, _PROBE)
        assert client.answer(41).status == "0"
        client.close()


class _CountingCredit(dict):
    """Counts the looks at single streams."""

    looks = 0

    def get(self, *args):
        self.looks += 1
        return super().get(*args)


def test_a_window_update_touches_only_the_streams_that_it_lets_go():
    sender = FlowControlledSender()
    sender._credit = credit = _CountingCredit()
    sender.initial_window(0)
    for stream in range(1, 8001, 2):
        sender.queue(stream, b"12345")
    credit.looks = 0
    for _ in range(1000):
        sender.window_update(0, 1)
    for _ in range(100):
        sender.window_update(1, 1)
    assert credit.looks < 1000
    assert sender.blocked == 3999
    for _ in range(1000):
        sender.initial_window(0)
        sender.initial_window(1)
    looks = credit.looks
    assert looks < 1100
    sender.serve_resized()
    assert credit.looks < looks + 20_000
    sent = [frame for frame in sender.out if frame[3] == f.DATA]
    assert sum(len(frame) - 9 for frame in sent) == 5 + 3999


def test_streams_that_share_the_connection_s_window_take_turns():
    sender = FlowControlledSender()
    sender.window = 0
    for stream in (1, 3, 5):
        sender.queue(stream, b"x" * 40)
    for _ in range(12):
        sender.window_update(0, 10)
    streams = [int.from_bytes(frame[5:9], "big") for frame in sender.out]
    assert streams == [1, 3, 5] * 4
    assert sender.blocked == 0


_FLOODS = {
    "settings": f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 1}),
    "headers on a closed stream": _headers(1),
    "data on a closed stream": f.frame(f.DATA, 0, 1, b""),
    "large data on a closed stream": f.frame(f.DATA, 0, 1, bytes(16_000)),
    "window updates": f.window_update(1, 1),
    "window updates of the connection": f.window_update(0, 1),
    "priorities": f.frame(f.PRIORITY, 0, 1, bytes(5)),
    "an unknown type": f.frame(0xEE, 0, 0),
    "probes": None,
    "calls without a message": None,
    "calls that are refused": None,
    "calls of an unknown kind": None,
    "new header blocks": None,
}


def _flood(name):
    """Frames without an end."""
    fixed = _FLOODS[name]
    body = grpc_body({"probes": _PROBE, "calls that are refused": _REFUSED}.get(name, b""))
    for stream in itertools.count(3, 2):
        if fixed is not None:
            yield fixed
        elif name == "calls without a message":
            yield f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, _BLOCK)
        elif name == "new header blocks":
            block = encode_headers((*CALL, (b"x", b"%d" % stream * 2_000)))
            yield _headers(stream, block) + f.reset(stream, f.CANCEL)
        else:
            block = encode_headers(_UNKNOWN) if name == "calls of an unknown kind" else _BLOCK
            yield _headers(stream, block) + f.frame(f.DATA, f.END_STREAM, stream, body)


def _flood_until(sock, frames, condition):
    """Send frames, and take what is answered, until the condition holds."""
    sock.setblocking(False)
    until, data = time.monotonic() + 60, b""
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        data = data or b"".join(itertools.islice(frames, 100))
        with contextlib.suppress(BlockingIOError):
            data = data[sock.send(data) :]
        with contextlib.suppress(BlockingIOError):
            sock.recv(1 << 20)


@pytest.mark.parametrize("name", _FLOODS)
def test_a_client_that_floods_with_frames_that_carry_no_call_is_read_slowly_and_others_are_not(
    name,
):
    with served(FastPathLimits(own_frames=100, idle_frames=1000)) as (address, _, context):
        hostile, other = RawClient(address), RawClient(address)
        for client in (hostile, other):
            client.call(1, _PROBE)
            assert client.answer(1).status == "0"
        _flood_until(
            hostile.sock,
            _flood(name),
            lambda: any(lane._wire.is_held("frames") for lane in context.lanes),
        )
        other.call(3, _PROBE)
        assert other.answer(3).status == "0"
        hostile.close()
        other.close()


def test_a_client_that_goes_on_to_flood_is_ended():
    with served(FastPathLimits(own_frames=100, idle_frames=1000, over_s=0.3)) as (
        address,
        _,
        context,
    ):
        hostile = RawClient(address)
        _eventually(lambda: context.lanes)
        until = time.monotonic() + 60
        while context.lanes:
            assert time.monotonic() < until, "it is still served"
            hostile.send(f.frame(f.PRIORITY, 0, 1, bytes(5)) * 1000)
        hostile.close()


def test_a_reader_may_send_window_updates_as_it_is_sent_data():
    shared = SharedFrameBudget(1)
    allowance, sender = FrameRateLimit(10, shared), FlowControlledSender()
    sender.window_update(0, 1 << 30)
    sender.window_update(1, 1 << 30)
    sender.refill(1 << 30)
    sender.queue(1, bytes(50 * f.MAX_FRAME))
    allowance.left -= 100
    assert allowance.is_used_up()
    allowance.earn(sender.pop_earned_updates())
    assert not allowance.is_used_up() and sender.pop_earned_updates() == 0


def test_of_a_client_that_floods_no_more_waits_in_the_pump_than_it_reads_at_once():
    with served(FastPathLimits(idle_frames=2000)) as (address, _, context):
        hostile = RawClient(address)
        hostile.call(1, _PROBE)
        assert hostile.answer(1).status == "0"
        (lane,) = context.lanes
        hostile.sock.settimeout(0.2)
        most, until = 0, time.monotonic() + 3
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                hostile.sock.send(f.frame(f.PING, f.ACK, 0, bytes(8)) * 4000)
            most = max(most, len(lane._rest))
        assert 0 < most <= 320 << 10  # asyncio reads 256 KiB
        hostile.close()


@pytest.mark.slow
def test_every_frame_of_a_burst_beyond_the_rate_is_answered_though_nothing_follows_it():
    with served(FastPathLimits(idle_frames=2000)) as (address, _, _context):
        client = RawClient(address)
        client.call(1, _PROBE)
        assert client.answer(1).status == "0"
        client.send(f.frame(f.PING, 0, 0, bytes(8)) * 5000)
        client.sock.settimeout(60)
        answered = 0
        while answered < 5000 * 17:
            answered += len(client.sock.recv(1 << 16))
        client.close()


# -- uploads


@pytest.mark.slow
def test_tiny_frames_take_no_more_memory_than_their_bytes():
    with served(FastPathLimits(partial=64 << 20, own_frames=10_000_000)) as (address, _, context):
        client = RawClient(address)
        client.call(1, _PROBE)
        client.answer(1)
        client.send(_headers(3), f.frame(f.DATA, 0, 3, b"\0" + (10 << 20).to_bytes(4, "big")))
        before = psutil.Process().memory_info().rss
        for _ in range(10):
            client.send(f.frame(f.DATA, 0, 3, b"x") * 50_000)
        _eventually(lambda: context.uploads.size == 500_005)
        assert psutil.Process().memory_info().rss < before + (20 << 20)
        client.close()
        _eventually(lambda: context.uploads.size == 0)


def test_uploads_of_all_connections_together_are_bounded_and_a_small_one_still_comes_through():
    with served(FastPathLimits(partial=4 << 20, share=1 << 20)) as (address, _, context):
        hostile = []
        for _ in range(8):
            client = RawClient(address)
            client.call(1, _PROBE)
            client.answer(1)
            hostile.append(client)
            for stream in range(3, 23, 2):
                client.send(
                    _headers(stream),
                    f.frame(f.DATA, 0, stream, b"\0" + (100 << 20).to_bytes(4, "big")),
                )
                for _ in range(40):
                    client.send(f.frame(f.DATA, 0, stream, b"x" * 16_000))
        _eventually(
            lambda: any(answer.reset == f.REFUSED_STREAM for answer in _read(hostile[-1]).values())
        )
        assert context.uploads.size < 4 * (4 << 20) + 8 * (1 << 20)
        writer = RawClient(address)
        writer.call(1, b"v" * 500_000)
        assert writer.answer(1).status == "0"
        for client in (*hostile, writer):
            client.close()
        _eventually(lambda: context.uploads.size == 0)


def _read(client):
    client.read(0.05)
    return client.answers


def test_an_upload_that_stands_still_is_given_up():
    with served(FastPathLimits(stalled_s=0.1)) as (address, _, context):
        client = RawClient(address)
        client.call(1, _PROBE)
        client.answer(1)
        client.send(_headers(3), f.frame(f.DATA, 0, 3, b"\0" + (100).to_bytes(4, "big") + b"x"))
        _eventually(lambda: context.uploads.size == 6)
        time.sleep(0.2)
        _close_idle(context, time.monotonic())
        assert client.answer(3).reset == f.CANCEL
        assert context.uploads.size == 0
        client.close()


# -- connections


def test_connections_end_below_the_limit_and_one_address_gets_half_of_it():
    with served(descriptors=8) as (address, _, context):
        host, port = address.rsplit(":", 1)
        taken = [socket.create_connection((host, int(port)), 60) for _ in range(4)]
        _eventually(lambda: context.places.used == 4)
        fifth = socket.create_connection((host, int(port)), 60)
        assert taken[0].recv(1) == b"", "the idlest of its address makes room for it"
        other = socket.create_connection((host, int(port)), 60, ("127.0.0.2", 0))
        _eventually(lambda: context.places.used == 5)
        for sock in (*taken, fifth, other):
            sock.close()
        _eventually(lambda: context.places.used == 0)
        assert context.places.size == 0


def test_two_addresses_that_take_all_there_is_shut_no_other_out():
    with served(descriptors=8) as (address, _, context):
        host, port = address.rsplit(":", 1)
        crowd = [
            socket.create_connection((host, int(port)), 60, (f"127.0.0.{2 + n % 2}", 0))
            for n in range(20)
        ]
        _eventually(lambda: context.places.used == 8)
        writer = RawClient(address)
        writer.call(1, _PROBE)
        assert writer.answer(1).status == "0"
        for sock in (*crowd, writer):
            sock.close()


def test_a_crowd_that_keeps_bytes_here_takes_no_more_than_all_may_and_a_writer_is_served():
    """Header blocks that don't end, half a frame, calls whose bodies don't come, before and after a
    first call.
    """
    limit = 2 << 20
    with served(FastPathLimits(held=limit)) as (address, _, context):
        most, crowd = 0, []
        for number in range(120):
            client = RawClient(address)
            crowd.append(client)
            if number % 2:
                client.call(1, _PROBE)
            stream = 3
            for _ in range(200 if number % 3 else 0):
                client.send(_headers(stream, _OTHER_BLOCK))
                stream += 2
            client.send(f.frame(f.HEADERS, 0, stream, b"\0\x7f" + bytes(16_000)))
            client.send(
                *(f.frame(f.CONTINUATION, 0, stream, bytes(15_000)) for _ in range(3)), bytes(100)
            )
            most = max(most, context.places.size)
        assert most <= limit + (300 << 10)  # what one read brings is counted after it
        _eventually(lambda: context.places.size <= limit)
        assert len(context.lanes) < 70
        # Calls of the crowd that are read after it was accepted are newer than the writer.
        _eventually(lambda: not any(lane.behind for lane in context.lanes))
        writer = RawClient(address)
        writer.call(1, _PROBE)
        assert writer.answer(1).status == "0"
        for client in (*crowd, writer):
            client.close()
        _eventually(lambda: context.places.size == 0)


def test_answers_that_a_crowd_does_not_take_are_counted_as_they_are_made():
    limit = 2 << 20
    with served(FastPathLimits(held=limit, idle_frames=10_000_000)) as (address, _, context):
        crowd = []
        for _ in range(40):
            client = RawClient(address, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
            client.ack = False
            crowd.append(client)
            body = f.frame(f.DATA, f.END_STREAM, 0, grpc_body(_PROBE))
            client.send(
                *(
                    _headers(stream) + body[:5] + stream.to_bytes(4, "big") + body[9:]
                    for stream in range(1, 201, 2)
                )
            )
            client.wait_frame(f.HEADERS)
        # 4,000 answers of 700 bytes are more than all may have, though nothing more is read.
        _eventually(lambda: len(context.lanes) < 25)
        _eventually(lambda: context.places.size <= limit)
        assert sum(lane._sender.queued_bytes for lane in context.lanes) <= limit
        for client in crowd:
            client.close()


def test_of_calls_without_a_binlog_no_more_are_answered_at_once_than_are_allowed():
    with served(FastPathLimits(own_frames=20, idle_frames=1)) as (address, _, context):
        client = RawClient(address, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
        body = f.frame(f.DATA, f.END_STREAM, 0, grpc_body(_PROBE))
        client.send(
            *(
                _headers(stream) + body[:5] + stream.to_bytes(4, "big") + body[9:]
                for stream in range(1, 4001, 2)
            )
        )
        _eventually(lambda: any(lane._wire.is_held("frames") for lane in context.lanes))
        assert all(lane._sender.blocked < 256 for lane in context.lanes)
        client.close()


def test_a_new_connection_begins_with_few_frames_and_earns_its_rate():
    shared = SharedFrameBudget(1)
    with mock.patch("time.monotonic", side_effect=(0.0, 0.5)):
        allowance = FrameRateLimit(200, shared)
        first, allowance.left = allowance.left, -99.5
        assert first == 20
        assert not allowance.is_used_up()
        assert allowance.left == pytest.approx(0.5)


def test_a_connection_that_opens_no_call_is_closed_and_one_without_calls_after_a_goodbye():
    with served(FastPathLimits(first_call_s=0.1, idle_s=0.1)) as (address, _, context):
        silent, idle = RawClient(address), RawClient(address)
        idle.call(1, _PROBE)
        idle.answer(1)
        _eventually(lambda: len(context.lanes) == 2)
        time.sleep(0.2)
        _close_idle(context, time.monotonic())
        silent.wait_closed()
        idle.wait_frame(f.GOAWAY)
        idle.call(3, _PROBE)  # crossed the GOAWAY
        assert idle.answer(3).status == "0"
        _close_idle(context, time.monotonic() + 60)
        idle.wait_closed()
        assert not context.lanes


def test_other_calls_are_bounded_until_they_have_ended_also_those_that_were_reset():
    with served(FastPathLimits(calls=4)) as (address, _, context):
        client = RawClient(address)
        client.call(1, _PROBE)
        client.answer(1)
        for stream in range(3, 11, 2):
            client.call(stream, b"", _OTHER)
        client.call(11, b"", _OTHER)
        assert client.answer(11).status == "8"
        client.send(*(f.reset(stream, f.CANCEL) for stream in range(3, 11, 2)))
        _eventually(lambda: context.calls == 0)
        client.call(13, b"", _OTHER)
        _eventually(lambda: context.calls == 1)
        client.close()
        _eventually(lambda: context.calls == 0)


def test_answers_are_sent_without_delay():
    """Small answers that wait for the acknowledgement of those before them wait 40 ms."""
    with served() as (address, front, _):
        client = RawClient(address)
        client.call(1, _PROBE)
        client.answer(1)
        (transport,) = front.connections
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()


# -- HTTP/1


def test_what_comes_behind_a_request_stays_with_the_client_until_it_is_answered():
    answer = threading.Event()

    async def page(request):
        while not answer.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return HttpResponse(200, "text/plain", b"done\n")

    with served(http1=lambda roles: Http1Connection(page, roles)) as (address, _, _context):
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), 60)
        sock.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        sock.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                sent += sock.send(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        assert sent < 32 << 20  # what the sockets hold
        answer.set()
        sock.settimeout(60)
        got = b""
        while b"done" not in got:
            got += sock.recv(65536)
        sock.close()


def test_answers_that_are_not_read_stop_the_next_ones():
    made = []

    async def page(request):
        made.append(request.target)
        return HttpResponse(200, "text/plain", b"x" * (1 << 20))

    with served(http1=lambda roles: Http1Connection(page, roles)) as (address, _, _context):
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), 60)
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        _eventually(lambda: made)
        time.sleep(0.5)
        assert len(made) < 50
        got = 0
        while got < 200 << 20:
            got += len(sock.recv(1 << 20))
        assert len(made) == 200
        sock.close()


def test_a_connection_that_went_away_with_its_last_bytes_is_no_obstacle_when_all_are_closed():
    async def page(request):
        return HttpResponse(200, "text/plain", b"x" * (50 << 20))

    with served(http1=lambda roles: Http1Connection(page, roles)) as (address, front, _):
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), 60)
        sock.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        _eventually(lambda: front.connections)
        (transport,) = front.connections
        while sock.recv(1 << 20):
            pass
        _eventually(lambda: transport.get_extra_info("socket").fileno() < 0)
        front.close_all()
        sock.close()


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n"])
def test_a_body_in_thousands_of_pieces_is_refused(piece):
    async def page(request):
        return HttpResponse(200, "text/plain", b"done\n")

    with served(http1=lambda roles: Http1Connection(page, roles)) as (address, _, _context):
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), 60)
        sock.sendall(
            b"PUT /state/x/pause HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + piece * 1000
        )
        assert b" 413 " in sock.recv(65536)
        sock.close()


# -- a whole pump


@pytest.fixture(scope="module")
def pump(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        pump = site.pump("pump")
        client = Client(pump.address)
        for _ in range(60):  # some 30 MB to read
            client.transaction(site.pd, b"v" * 500_000)
        client.close()
        yield pump
    finally:  # a pump that is left behind keeps the interpreter from ending
        site.close()


@pytest.mark.slow
def test_one_profile_is_taken_at_a_time_and_state_and_metrics_answer_meanwhile(pump):
    def asked_meanwhile(seconds):
        """What the others were answered; None if the profile was over before they had asked."""
        got = []
        profile = threading.Thread(
            target=lambda: got.append(http.get(f"/debug/profile?seconds={seconds}").status_code)
        )
        profile.start()
        _eventually(lambda: "pump-profile" in others.get("/debug/stack").text or got)
        codes = [others.get("/debug/profile?seconds=0.1").status_code for _ in range(20)]
        assert others.get("/status").json()["ErrMsg"] == ""
        assert others.get("/metrics").status_code == others.get("/debug/stack").status_code == 200
        in_time = not got
        profile.join()
        assert got == [200]
        return codes if in_time else None

    address = f"http://{pump.address}"
    with (
        httpx.Client(base_url=address, timeout=120) as http,
        httpx.Client(base_url=address, timeout=60) as others,
    ):
        assert (asked_meanwhile(1.5) or asked_meanwhile(10) or asked_meanwhile(60)) == [429] * 20


def _rss(pump):
    return psutil.Process(pump.process.pid).memory_info().rss


def _readers(address, count, window):
    clients = []
    message = pb.pump.PullBinlogReq(clusterID=CLUSTER).SerializeToString()
    for _ in range(count):
        client = RawClient(address, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: window}))
        client.send(f.window_update(0, 2**31 - 1 - 65535))
        client.call(1, message, _PULL)
        clients.append(client)
    return clients


def _threads(pump):
    """Python's threads: grpc's core begins and ends some of its own if the machine is busy."""
    return httpx.get(f"http://{pump.address}/debug/stack", timeout=60).text.count("\nthread ")


def _is_refused(client):
    answer = client.answers.get(1)
    if answer is None or not answer.ended:
        client.read(0.01)
    return client.answers.get(1) is not None and client.answers[1].status == "8"


def test_readers_that_do_not_read_take_bounded_memory_and_threads(pump):
    before, threads = _rss(pump), _threads(pump)
    # Whether the stream's window holds the pump back or only the socket.
    clients = _readers(pump.address, 20, 2**31 - 1) + _readers(pump.address, 20, 0)
    time.sleep(2)
    assert _threads(pump) <= threads + pulls.MAX_READERS_PER_HOST + 4
    assert _rss(pump) < before + (250 << 20)
    # Which of them come first is the machine's to say.
    _eventually(
        lambda: sum(_is_refused(client) for client in clients) == 40 - pulls.MAX_READERS_PER_HOST
    )
    for client in clients:
        client.close()
    _eventually(lambda: _threads(pump) <= threads + 4)


def test_rapid_reset_makes_no_threads_and_other_clients_write(pump):
    threads = _threads(pump)
    message = pb.pump.PullBinlogReq(clusterID=CLUSTER).SerializeToString()
    client, writer = RawClient(pump.address), RawClient(pump.address)
    block = encode_headers(_PULL)
    most = 0
    client.sock.settimeout(1)
    stream = 1
    for round_ in range(200):
        frames = []
        for _ in range(50):
            frames += [
                _headers(stream, block),
                f.frame(f.DATA, f.END_STREAM, stream, grpc_body(message)),
                f.reset(stream, f.CANCEL),
            ]
            stream += 2
        try:
            client.sock.sendall(b"".join(frames))
        except TimeoutError:
            break  # it isn't read any more
        if round_ % 20 == 0:
            most = max(most, _threads(pump))
            writer.call(round_ * 2 + 1, request(binlog(0, _TS + round_, value=b"w")))
            assert writer.answer(round_ * 2 + 1).status == "0"
    assert most <= threads + 4
    client.close()
    writer.close()


def test_calls_whose_resets_wait_to_be_read_begin_no_reader(pump):
    threads = _threads(pump)
    message = pb.pump.PullBinlogReq(clusterID=CLUSTER).SerializeToString()
    client = RawClient(pump.address)
    block, body = encode_headers(_PULL), grpc_body(message)
    streams = range(1, 2 * pulls.MAX_READERS_PER_HOST, 2)
    calls = [
        part
        for stream in streams
        for part in (_headers(stream, block), f.frame(f.DATA, f.END_STREAM, stream, body))
    ]
    client.sock.settimeout(60)
    flood = f.frame(f.PING, f.ACK, 0, bytes(8)) * 12_000  # more than a second's allowance
    client.send(*calls, flood, *(f.reset(stream, f.CANCEL) for stream in streams))
    client.send(f.frame(f.PING, 0, 0, b"the last"))
    most = 0
    while (f.PING, f.ACK, 0, b"the last") not in client.frames:
        assert not client.closed
        most = max(most, _threads(pump))
        client.read(0.01)
    assert most < threads + pulls.MAX_READERS_PER_HOST // 2
    client.close()


def test_clients_beyond_their_allowances_are_read_again_in_turns_that_end():
    clock, timers, resumed = [0.0], [], []

    def resume(number):
        clock[0] += 0.001
        resumed.append(number)

    loop = mock.Mock(
        time=lambda: clock[0], call_later=lambda delay, call: timers.append(delay) or timers
    )
    reads = PausedReads(loop, StrangersShare(loop.time))
    for number in range(1000):
        reads.add(functools.partial(resume, number))
    while timers:
        clock[0] += timers.pop()
        already = len(resumed)
        reads._resume()
        assert 1 <= len(resumed) - already <= 3
    assert resumed == list(range(1000))
    assert clock[0] >= 3  # a quarter of the time was theirs


def test_clients_within_their_allowances_are_read_before_those_beyond():
    loop = mock.Mock(time=lambda: 0.0)
    reads, resumed = PausedReads(loop, StrangersShare(loop.time)), []
    with mock.patch.object(allowance, "_READ_PAUSE_S", 0.0):
        reads.add(lambda: resumed.append("beyond"))
    reads.put_off(lambda: resumed.append("within"))
    reads._resume()
    assert resumed == ["within", "beyond"]


def test_strangers_get_a_share_of_the_loop_however_long_one_of_them_takes():
    clock = [0.0]
    share = StrangersShare(lambda: clock[0])
    clock[0], taken_s, waited_s, longest_s = 1.0, 0.0, 0.0, 0.0

    def handle(_data):
        clock[0] += 0.002 if clock[0] < 6 else 0.5

    while clock[0] < 11:
        began = clock[0]
        if share.read(handle, b""):
            taken_s += clock[0] - began if began < 6 else 0
            waited_s = 0.0
        else:
            clock[0] += 0.001
            waited_s += 0.001
            longest_s = max(longest_s, waited_s)
    assert 1.1 < taken_s < 1.4, "a quarter of the first five seconds, and what it began with"
    assert longest_s < 0.03, "a read that took half a second shut all strangers out"


def test_strangers_beyond_their_share_are_answered_all_the_same_and_writers_at_once():
    with (
        served() as (address, _, context),
        mock.patch.object(StrangersShare, "is_left", return_value=False),
        mock.patch.object(
            context.paused_reads, "put_off", wraps=context.paused_reads.put_off
        ) as put_off,
    ):
        client = RawClient(address)
        client.call(1, _PROBE)
        assert client.answer(1).status == "0" and put_off.called
        context.places.note_writer("127.0.0.1")
        put_off.reset_mock()
        client.call(3, _PROBE)
        assert client.answer(3).status == "0" and not put_off.called
        client.close()


def test_first_bytes_of_strangers_beyond_their_share_are_read_in_turns_too():
    with (
        served() as (address, _, context),
        mock.patch.object(StrangersShare, "is_left", return_value=False),
        mock.patch.object(context.paused_reads, "put_off") as put_off,
    ):
        clients = [RawClient(address) for _ in range(20)]
        _eventually(lambda: put_off.call_count == len(clients))
        assert not context.lanes, "a crowd's connections began in one turn of the loop"
        for resume in [call.args[0] for call in put_off.call_args_list]:
            context.loop.call_soon_threadsafe(resume)
        _eventually(lambda: len(context.lanes) == len(clients))
        for client in clients:
            client.close()


def test_first_bytes_that_come_piece_by_piece_are_put_off_and_joined():
    with served() as (address, _, _context):
        with mock.patch.object(StrangersShare, "is_left", return_value=False):
            host, port = address.rsplit(":", 1)
            sock = socket.create_connection((host, int(port)))
            for part in (f.PREFACE[:3], f.PREFACE[3:], f.settings({})):
                sock.sendall(part)
                time.sleep(0.05)
            sock.settimeout(60)
            assert sock.recv(9), "no SETTINGS of the pump"
        sock.close()


@pytest.mark.slow
def test_untaken_answers_of_a_crowd_cost_the_garbage_collector_nothing():
    calls = 1000
    with served(FastPathLimits(idle_frames=10_000_000)) as (address, _, context):
        client = RawClient(address, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
        client.call(1, _PROBE)
        client.wait_frame(f.HEADERS)
        (lane,) = context.lanes
        gc.collect()
        before = len(gc.get_objects())
        for stream in range(3, 2 * calls, 2):
            client.call(stream, _PROBE)
        _eventually(lambda: lane.sender.blocked == calls)
        gc.collect()
        assert len(gc.get_objects()) - before < calls // 2
        client.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 65535}))
        for stream in range(1, 2 * calls, 2):
            assert client.answer(stream).status == "0"
        client.close()


def test_a_connection_that_is_closed_is_freed_without_a_collection():
    with served() as (address, _, context):
        client = RawClient(address)
        client.call(1, _PROBE)
        client.answer(1)
        (lane,) = map(weakref.ref, context.lanes)
        gc.disable()
        try:
            client.close()
            _eventually(lambda: lane() is None)
        finally:
            gc.enable()


def test_connections_that_wait_in_the_systems_queue_are_accepted_in_one_turn():
    async def turns_until_accepted():
        loop = asyncio.get_running_loop()
        front = Listener(lambda _: pytest.fail("no HTTP/1 here"), Security())
        context = FastPathServer(loop, _Ingest(), FastPathLimits(), lambda *_: pytest.fail())
        front.use(context)
        address = await front.listen("127.0.0.1", 0, None)
        crowd = [socket.create_connection(address) for _ in range(200)]
        await front.serve()
        turns = 0
        while context.places.used < len(crowd):
            turns += 1
            await asyncio.sleep(0)
        front.stop_accepting()
        front.close_all()
        for client in crowd:
            client.close()
        return turns

    with mock.patch("sluice.pump_service.listener.port._ACCEPT_TURN_S", 60):
        assert asyncio.run(turns_until_accepted()) < 10


def test_a_binlog_that_says_its_commit_twice_is_refused_at_the_door(pump):
    client = RawClient(pump.address)
    payload = binlog(1, _TS + 7, _TS + 8)
    twice = payload + b"\x18" + pb_varint(_TS + 9)
    large = binlog(0, _TS + 17, value=b"v" * 100_000) + b"\x10" + pb_varint(_TS + 18)
    for stream, message in ((1, twice), (3, large), (5, binlog(0, _TS + 7) + b"\x08\x01")):
        client.call(stream, request(message))
        answer = client.answer(stream)
        assert answer.status == "2" and "more than once" in answer.headers["grpc-message"]
    client.call(7, request(payload))
    assert client.answer(7).status == "0"
    client.close()


def pb_varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
