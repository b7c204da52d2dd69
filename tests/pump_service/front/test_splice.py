"""A spliced connection passes every byte on, whoever speaks first and however the bytes are cut."""

import asyncio
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump_service.front import Admission
from pump_service.front.splice import AckFilter, Splices
from pump_service.lane import frames as f
from tests.pump_service.pumpkit import CLUSTER, Site
from tests.pump_service.rawhttp2 import CALL, RawClient
from upstream import pb

_ACK = f.frame(f.SETTINGS, f.ACK, 0)
_READ = (*((k, b"/sluice.Window/Read" if k == b":path" else v) for k, v in CALL), (b"grpc-encoding", b"gzip"))


class _EagerServer:
    """A Unix server in a thread: greets each connection at once, then sends back what comes."""

    def __init__(self, path, greeting):
        self._greeting = greeting
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.sendall(self._greeting)
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection):
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def eager(tmp_path):
    server = _EagerServer(str(tmp_path / "s"), b"hello")
    yield str(tmp_path / "s")
    server.close()


def test_the_first_bytes_of_a_server_that_speaks_at_once_arrive(eager):
    async def one(splices):
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        splices.join(transport, f.PREFACE, 0, our_ack_pending=False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        got = await asyncio.wait_for(reader.readexactly(len(b"hello") + len(f.PREFACE)), 60)
        writer.close()
        return got

    async def all_of_them():
        splices = Splices(eager, Admission(100))
        # A loop that is kept busy sees the connection and its first bytes in one round.
        asyncio.get_running_loop().call_soon(time.sleep, 0.05)
        return await asyncio.gather(*(one(splices) for _ in range(20)))

    for got in asyncio.run(all_of_them()):
        assert got.startswith(b"hello")  # what the client sent comes back behind it
        assert got.endswith(f.PREFACE)


def test_the_grpc_server_s_settings_reach_every_new_connection(tmp_path):
    """Without them it never gets their acknowledgement, and ends the connection after 60 s: "settings timeout"."""
    site = Site(tmp_path)
    try:
        pump = site.pump("pump")
        for _ in range(60):
            client = RawClient(pump.address)
            client.call(1, pb.window.ReadRequest(cluster_id=CLUSTER).SerializeToString(), _READ)
            assert client.answer(1).status == "0"
            own, theirs = [payload for kind, flags, _, payload in client.frames if kind == f.SETTINGS and not flags]
            assert own == b"" and theirs != b""
            client.close()
    finally:
        site.close()


_frames = st.lists(
    st.one_of(
        st.just(_ACK),
        st.builds(
            lambda kind, flags, body: f.frame(kind, flags, 1, body),
            st.integers(0, 9),
            st.just(0),
            st.binary(max_size=60),
        ),
    ),
    max_size=8,
)


@given(_frames, st.integers(0, 3), st.integers(1, 70), st.binary(max_size=5))
def test_acknowledgements_are_removed_wherever_the_stream_is_cut(frames, count, step, rest):
    data = f.PREFACE + b"".join(frames) + rest
    acks = AckFilter(count, len(f.PREFACE))
    passed = b"".join(acks.pass_on(data[i : i + step]) for i in range(0, len(data), step))
    left, kept = count, []
    for frame in frames:
        if frame == _ACK and left:
            left -= 1
        else:
            kept.append(frame)
    want = f.PREFACE + b"".join(kept) + rest
    held = len(want) - len(passed)
    assert want.startswith(passed)
    assert held == 0 if not left else held < 9


def test_a_frame_of_16_mib_passes_as_it_comes():
    acks = AckFilter(1, 0)
    head = (0xFFFFFF << 8 | f.DATA).to_bytes(4, "big") + bytes(5)
    assert acks.pass_on(head) == head
    assert acks.pass_on(b"x" * 1000) == b"x" * 1000
    assert not acks._head
