"""Anything at all is sent to the port: no crash, nothing left behind, nobody else disturbed.

A pump with everything in it runs in this process, so that what a connection leaves behind can be
counted. `SLUICE_FUZZ_SECONDS` makes the random run longer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.pump_service.config import Config
from sluice.pump_service.grpc_fastpath import FastPathConnection
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from sluice.pump_service.http import Http1Connection
from sluice.pump_service.listener.port import _ProtocolSniffer
from sluice.pump_service.server import PumpServer
from sluice.pump_service.store import StoreOptions
from tests.examples import examples
from tests.ports import free_port
from tests.pump_service.pumpkit import CLUSTER, Site, binlog, request
from tests.pump_service.rawhttp2 import CALL, RawClient, grpc_body

_TS = 1_700_000_000_000 << 18
_PULL = tuple((k, b"/binlog.Pump/PullBinlogs" if k == b":path" else v) for k, v in CALL)
_READ = tuple((k, b"/sluice.Window/Read" if k == b":path" else v) for k, v in CALL)
_OTHER = tuple((k, b"/binlog.Cistern/Notify" if k == b":path" else v) for k, v in CALL)
_KINDS = (FastPathConnection, _ProtocolSniffer, Http1Connection)


class _Victim:
    """A pump in this process, and somebody who goes on using it on connections of its own."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.address = f"127.0.0.1:{free_port()}"
        config = Config(
            addr=self.address,
            advertise_addr=self.address,
            pd_urls=self.site.pd.url,
            data_dir=str(folder / "pump"),
            gen_binlog_interval=3600.0,
            storage=StoreOptions(stop_write_at_available_space=0),
        )
        self.pump = PumpServer(config)
        self.pump.start()
        self.client = RawClient(self.address)
        self.web = httpx.Client(base_url=f"http://{self.address}", timeout=60)
        self._stream = -1
        self.written: list[int] = []
        self.check()
        self.idle = self.counts()

    def check(self) -> None:
        """A call on the old connection is answered, and so is a page."""
        self._stream += 2
        ts = _TS + len(self.written)
        self.client.call(self._stream, request(binlog(0, ts, value=b"victim")))
        answer = self.client.answer(self._stream)
        assert answer.status == "0", answer
        self.written.append(ts)
        assert self.web.get("/drainers").status_code == 200

    def counts(self) -> dict[str, int]:
        """What a connection takes: descriptors, call threads, protocols, bytes accounted for."""
        gc.collect()
        objects = gc.get_objects()
        found = {kind.__name__: sum(type(o) is kind for o in objects) for kind in _KINDS}
        port = int(self.address.rsplit(":", 1)[1])
        found["sockets"] = sum(
            bool(c.laddr and c.laddr.port == port) for c in psutil.Process().net_connections("inet")
        )
        found["open"] = len(self.pump._port.listener.connections)
        found["lanes"] = len(self.pump._port.lanes.lanes)
        found["queued"] = self.pump._port.lanes.queued
        return found

    def settle(self) -> None:
        """Waits until only what was there at the beginning is left."""
        until = time.monotonic() + 60
        while True:
            now = self.counts()
            left = {key: now[key] - self.idle[key] for key in now if now[key] > self.idle[key]}
            if not left:
                return
            assert time.monotonic() < until, f"left behind: {left}"
            time.sleep(0.05)

    def close(self) -> None:
        self.client.close()
        self.web.close()
        self.pump.leave()
        assert self.pump.wait(60)
        self.site.close()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Victim]:
    gc.collect()
    # what other files of tests have left in this process is neither collected nor counted again and
    # again
    gc.freeze()
    try:
        victim = _Victim(tmp_path_factory.mktemp("fuzz"))
        try:
            yield victim
            victim.check()
            victim.settle()
            until = time.monotonic() + 60
            # the index follows the answer
            while victim.pump._store.lookup(victim.written[-1]) is None:
                assert time.monotonic() < until
                time.sleep(0.05)
            for ts in victim.written:  # what was acknowledged is there, whatever was sent beside it
                payload = victim.pump._store.lookup(ts)
                assert payload is not None and b"victim" in payload
        finally:
            victim.close()
    finally:
        gc.unfreeze()


def _attack(address: str, pieces: list[bytes], ending: str) -> None:
    """Sends the pieces one by one, reads what comes, and leaves in one of the ways a peer may
    leave.
    """
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5) as sock, contextlib.suppress(OSError):
        for piece in pieces:
            sock.sendall(piece)
        sock.settimeout(0.002)
        with contextlib.suppress(TimeoutError):
            sock.recv(65536)
        if ending == "half":
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                sock.recv(65536)
        elif ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# -- what is sent

_stream_ids = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]))
_payload = st.one_of(st.binary(max_size=40), st.binary(max_size=600))
_any_frame = st.builds(
    lambda kind, flags, stream, payload: f.frame(kind, flags, stream, payload),
    st.one_of(st.integers(0, 9), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x25, 0x2D]), st.integers(0, 255)),
    _stream_ids,
    _payload,
)
_lying_frame = st.builds(
    lambda size, kind, stream: (
        (size << 8 | kind).to_bytes(4, "big") + b"\0" + stream.to_bytes(4, "big")
    ),
    st.one_of(st.integers(0, 300), st.integers(16_000, 17_000), st.integers(0, 2**24 - 1)),
    st.integers(0, 9),
    st.integers(0, 9),
)
_varint_edges = st.sampled_from([0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, _TS])
_binlogs = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda tp, start, commit, rest: (
            b"\x08" + _uvarint(tp) + b"\x10" + _uvarint(start) + b"\x18" + _uvarint(commit) + rest
        ),
        st.integers(0, 300),
        _varint_edges,
        _varint_edges,
        st.binary(max_size=30),
    ),
)
_messages = st.one_of(
    st.binary(max_size=60),
    _binlogs.map(request),
    st.builds(request, _binlogs, st.sampled_from([CLUSTER, 0, 1])),
    st.builds(lambda body: b"\x12" + _uvarint(len(body) + 5) + body, st.binary(max_size=20)),
)
_calls = st.builds(
    lambda stream, headers, message, compressed: (
        f.frame(f.HEADERS, f.END_HEADERS, stream, encode_headers(headers))
        + f.frame(f.DATA, f.END_STREAM, stream, grpc_body(message, compressed))
    ),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([CALL, CALL, CALL, _PULL, _READ, _OTHER, CALL[:3]]),
    _messages,
    st.sampled_from([0, 0, 0, 1, 255]),
)
_first = st.one_of(
    st.just(f.PREFACE + f.settings({})),
    st.just(f.PREFACE + f.settings({})),
    st.integers(0, 24).map(lambda n: f.PREFACE[:n]),
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n",
            b"PUT /state/nobody/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
            b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        ]
    ),
)
_conversations = st.builds(lambda first, rest: [first, *rest], _first, st.lists(
    st.one_of(_calls, _calls, _any_frame, _lying_frame, st.binary(max_size=50)), max_size=6
))  # fmt: skip


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
@given(
    conversation=_conversations,
    ending=st.sampled_from(["close", "half", "reset"]),
    cut=st.integers(1, 200),
)
def test_no_conversation_disturbs_another_connection(
    victim: _Victim, conversation: list[bytes], ending: str, cut: int
) -> None:
    data = b"".join(conversation)
    _attack(victim.address, [data[:cut], data[cut:]], ending)
    victim.check()
    assert victim.pump.state == "online"


def test_a_random_run_leaves_nothing_behind(victim: _Victim) -> None:
    """Valid traffic with bytes changed, left out, repeated and moved.

    Many connections at a time.
    """
    noise = random.Random(int(os.environ.get("SLUICE_FUZZ_SEED", "20261121")))
    until = time.monotonic() + float(os.environ.get("SLUICE_FUZZ_SECONDS", "0"))
    process = psutil.Process()
    rounds, memory = 0, 0
    while rounds < 40 or time.monotonic() < until:
        rounds += 1
        for _ in range(10):
            data = _traffic(noise)
            for _ in range(noise.choice([0, 1, 1, 2, 8, 30])):
                _mutate(noise, data)
            at = noise.randrange(len(data) + 1)
            _attack(
                victim.address,
                [bytes(data[:at]), bytes(data[at:])],
                noise.choice(["close", "close", "half", "reset"]),
            )
        victim.check()
        if rounds == 20:
            memory = process.memory_info().rss
        if rounds % 500 == 0:
            victim.settle()
            print(f"{rounds} rounds, {process.memory_info().rss >> 20} MiB")
    victim.settle()
    # the store's queue of open transactions grows
    allowed = 64 << 20 if rounds == 40 else 200 << 20
    assert process.memory_info().rss < memory + allowed


def _traffic(noise: random.Random) -> bytearray:
    kind = noise.random()
    if kind < 0.15:
        return bytearray(
            b"%s /%s HTTP/1.1\r\nHost: pump\r\nContent-Length: %d\r\n\r\n%s"
            % (
                noise.choice([b"GET", b"POST", b"PUT"]),
                noise.choice(
                    [b"status", b"metrics", b"debug/binlog/5", b"state/x/close", b"nothing"]
                ),
                noise.choice([0, 3, 10**9]),
                noise.randbytes(noise.randint(0, 40)),
            )
        )
    data = bytearray(
        f.PREFACE
        + f.settings({f.SETTING_INITIAL_WINDOW_SIZE: noise.choice([0, 10, 65535, 2**31 - 1])})
    )
    stream = 1
    for _ in range(noise.randint(1, 12)):
        choice = noise.random()
        if choice < 0.6:
            ts = (1 << 61) - noise.randrange(1 << 40)
            message = request(
                binlog(
                    noise.choice([0, 0, 1, 2]), ts, ts + 1, noise.randbytes(noise.randint(0, 300))
                )
            )
            headers = noise.choice([CALL, CALL, CALL, CALL, _PULL, _READ, _OTHER])
            data += f.frame(f.HEADERS, f.END_HEADERS, stream, encode_headers(headers))
            body = grpc_body(message)
            if noise.random() < 0.3:
                data += f.frame(f.DATA, 0, stream, body[: len(body) // 2])
                body = body[len(body) // 2 :]
            data += f.frame(f.DATA, f.END_STREAM if noise.random() < 0.9 else 0, stream, body)
            stream += 2
        elif choice < 0.7:
            data += f.frame(f.PING, noise.choice([0, 1]), 0, noise.randbytes(8))
        elif choice < 0.8:
            data += f.window_update(noise.choice([0, stream]), noise.randint(1, 2**20))
        elif choice < 0.9:
            data += f.reset(max(stream - 2, 1), noise.randint(0, 13))
        else:
            data += f.settings({noise.randint(0, 9): noise.choice([0, 1, 4096, 2**31 - 1])})
    return data


def _mutate(noise: random.Random, data: bytearray) -> None:
    if not data:
        return
    at, size = noise.randrange(len(data)), noise.randint(1, 12)
    how = noise.randrange(5)
    if how == 0:
        data[at] ^= 1 << noise.randrange(8)
    elif how == 1:
        data[at : at + size] = noise.randbytes(size)
    elif how == 2:
        del data[at : at + size]
    elif how == 3:
        data[at:at] = data[at : at + size]
    else:
        data[at:at] = noise.randbytes(size)


# -- limits, over the port of a whole pump


def test_a_header_list_that_unpacks_to_megabytes_is_refused(victim: _Victim) -> None:
    client = RawClient(victim.address)
    # enters the dynamic table
    big = b"\x40" + b"\x01x" + b"\x7f" + _uvarint(3900 - 127) + b"v" * 3900
    block = encode_headers(CALL) + big
    client.send(f.frame(f.HEADERS, f.END_HEADERS, 1, block))
    client.body(1, grpc_body(request(b"")))
    assert client.answer(1).status == "0"
    before = psutil.Process().memory_info().rss
    # 62 MB of headers
    client.send(f.frame(f.HEADERS, f.END_HEADERS, 3, encode_headers(CALL) + b"\xbe" * 16_000))
    client.body(3, grpc_body(request(b"")))
    client.wait_closed()
    assert client.goaway is not None
    assert client.goaway[0] == f.COMPRESSION_ERROR
    assert "65536 are allowed" in client.goaway[1]
    assert psutil.Process().memory_info().rss < before + (32 << 20)
    client.close()


def test_connections_that_say_nothing_are_closed(
    victim: _Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.listener.port._FIRST_BYTES_TIMEOUT_S", 0.1)
    host, port = victim.address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), 5) for _ in range(20)]
    for sock in silent:
        assert sock.recv(100) == b""
        sock.close()
    victim.check()
