"""The lane at the level of HTTP/2 frames, against a running pump: what the protocol allows works,
what it forbids ends that connection and no other.
"""

import os
import random
import socket
import time

import pytest

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog, request
from tests.pump_service.rawhttp2 import CALL, RawClient, grpc_body

_BLOCK = encode_headers(CALL)
_PROBE = request(b"")


@pytest.fixture(scope="module", params=["as it is", "plain"])
def site(request, tmp_path_factory):
    """Of a pump with the compiled kernel, if there is one here, and of one without."""
    site = Site(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setenv("SLUICE_KERNEL", "plain")
        site.pump("lane")
    yield site
    site.close()


@pytest.fixture
def raw(site):
    made = []

    def connect(**more):
        made.append(RawClient(site.pumps[0].address, **more))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture(autouse=True)
def serving(site):
    """Whatever a test sends, a bystander's connection goes on and the pump still writes."""
    bystander = Client(site.pumps[0].address)
    bystander.transaction(site.pd, b"before")
    yield
    bystander.transaction(site.pd, b"after")
    bystander.close()
    assert site.pumps[0].process.poll() is None, site.pumps[0].text()
    assert "/pump_service/" not in site.pumps[0].text(), "a traceback of ours in the log"


def _message(site, size=0):
    """A transaction's Prewrite, and the function that writes its Commit so that none stays open."""
    start = site.pd.ts()
    return start, request(binlog(0, start, value=b"v" * size))


def _commit(site, start):
    return request(binlog(1, start, site.pd.ts()))


def _stored(site, start):
    client = Client(site.pumps[0].address)
    try:
        return client.pull_commits(start, 1)[0]
    finally:
        client.close()


def _write_and_check(site, client, write, stream=1, size=10):
    """`write(stream, message)` sends the Prewrite in some way; the transaction must come out."""
    start, message = _message(site, size)
    write(stream, message)
    answer = client.answer(stream)
    assert (answer.status, answer.body) == ("0", b"\0" * 5), answer
    client.call(stream + 100, _commit(site, start))
    assert client.answer(stream + 100).status == "0"
    found = _stored(site, start)
    assert (found.start_ts, len(found.prewrite_value)) == (start, size)


def test_a_plain_call_is_answered(site, raw):
    client = raw()
    _write_and_check(site, client, client.call)
    assert client.answers[1].headers["content-type"] == "application/grpc"


def test_a_message_of_3_mb_is_stored_whole(site, raw):
    client = raw()
    client.call(1, _PROBE)  # makes the connection a lane's, which widens the windows
    client.answer(1)
    client.wait_frame(f.WINDOW_UPDATE)

    def write(stream, message):
        client.send(f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK))
        body = grpc_body(message)
        window = 1 << 20
        for at in range(0, len(body), f.MAX_FRAME):
            part = body[at : at + f.MAX_FRAME]
            while window < len(part):
                before = len(client.frames)
                client.read(5)
                window += sum(
                    int.from_bytes(p, "big")
                    for k, _, s, p in client.frames[before:]
                    if (k, s) == (8, stream)
                )
            window -= len(part)
            client.send(
                f.frame(f.DATA, f.END_STREAM if at + len(part) == len(body) else 0, stream, part)
            )

    _write_and_check(site, client, write, stream=3, size=3_000_000)


def test_padding_priority_and_continuation_are_understood(site, raw):
    client = raw()

    def write(stream, message):
        third = len(_BLOCK) // 3
        head = b"\x05" + b"\0\0\0\0\x10" + _BLOCK[:third] + b"\0" * 5
        body = grpc_body(message)
        client.send(
            f.frame(f.HEADERS, f.PADDED | f.PRIORITY_FLAG, stream, head),
            f.frame(f.CONTINUATION, 0, stream, _BLOCK[third : 2 * third]),
            f.frame(f.CONTINUATION, f.END_HEADERS, stream, _BLOCK[2 * third :]),
            f.frame(f.PRIORITY, 0, stream, b"\0\0\0\0\x10"),
            f.frame(f.DATA, f.PADDED, stream, b"\x03" + body[:7] + b"\0" * 3),
            f.frame(f.DATA, 0, stream, b""),
            f.frame(0xEE, 0xFF, stream, b"an unknown type"),
            f.frame(f.DATA, f.PADDED | f.END_STREAM, stream, b"\xff" + body[7:] + b"\0" * 255),
        )

    _write_and_check(site, client, write)


def test_a_call_may_come_a_byte_at_a_time(site, raw):
    client = raw()

    def write(stream, message):
        call = f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK)
        call += f.frame(f.DATA, f.END_STREAM, stream, grpc_body(message))
        for byte in call:
            client.send(bytes([byte]))
            if byte % 7 == 0:
                time.sleep(0.0005)

    _write_and_check(site, client, write)


def test_a_call_may_end_with_trailers(site, raw):
    client = raw()

    def write(stream, message):
        client.send(
            f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK),
            f.frame(f.DATA, 0, stream, grpc_body(message)),
            f.frame(
                f.HEADERS,
                f.END_HEADERS | f.END_STREAM,
                stream,
                encode_headers(((b"x-more", b"1"),)),
            ),
        )

    _write_and_check(site, client, write)


def test_256_calls_at_once_are_each_answered_once(site, raw):
    client = raw()
    starts = {}
    calls = []
    for number in range(256):
        start, message = _message(site, 100)
        starts[1 + 2 * number] = start
        calls.append(f.frame(f.HEADERS, f.END_HEADERS, 1 + 2 * number, _BLOCK))
        calls.append(f.frame(f.DATA, f.END_STREAM, 1 + 2 * number, grpc_body(message)))
    client.send(*calls)
    for stream in starts:
        assert client.answer(stream).status == "0"
    for number, start in enumerate(starts.values()):
        client.call(1001 + 2 * number, _commit(site, start))
    for number in range(256):
        assert client.answer(1001 + 2 * number).status == "0"
    ends = [
        stream
        for kind, flags, stream, _ in client.frames
        if kind == f.HEADERS and flags & f.END_STREAM
    ]
    assert len(ends) == len(set(ends)) == 512
    reader = Client(site.pumps[0].address)
    found = reader.pull_commits(min(starts.values()), 256)
    reader.close()
    assert {one.start_ts for one in found} == set(starts.values())


def test_a_ping_is_answered_before_and_after_the_first_call(site, raw):
    client = raw()
    client.send(f.frame(f.PING, 0, 0, b"12345678"))
    assert client.wait_frame(f.PING)[1:] == (f.ACK, 0, b"12345678")
    client.call(1, _PROBE)
    client.answer(1)
    client.frames.clear()
    client.send(f.frame(f.PING, 0, 0, b"abcdefgh"))
    assert client.wait_frame(f.PING)[1:] == (f.ACK, 0, b"abcdefgh")


def test_a_reset_call_doesn_t_disturb_the_next(site, raw):
    client = raw()
    client.send(
        f.frame(f.HEADERS, f.END_HEADERS, 1, _BLOCK),
        f.frame(f.DATA, 0, 1, b"\0\0\0\1\0half"),
        f.frame(f.RST_STREAM, 0, 1, f.CANCEL.to_bytes(4, "big")),
        f.frame(f.DATA, f.END_STREAM, 1, b"late"),
    )
    _write_and_check(site, client, client.call, stream=3)
    assert 1 not in client.answers


def test_a_client_without_window_gets_its_answer_once_it_gives_some(site, raw):
    client = raw(settings=f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
    client.call(1, _PROBE)
    client.wait_frame(f.HEADERS)
    client.read(0.2)
    assert not client.answers[1].ended
    client.send(f.window_update(1, 3))
    client.wait_frame(f.DATA)
    assert client.answers[1].body == b"\0\0\0"
    client.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 2}))
    assert client.answer(1).body == b"\0" * 5


@pytest.mark.quick_cases("as it is")
def test_an_exhausted_connection_window_holds_answers_back_and_loses_none(site, raw):
    client = raw()
    calls = 65535 // 5 + 40
    frames = []
    for number in range(calls):
        stream = 1 + 2 * number
        frames.append(f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK))
        frames.append(f.frame(f.DATA, f.END_STREAM, stream, grpc_body(_PROBE)))
        if len(frames) > 1000:
            client.send(*frames)
            frames.clear()
            client.read(0.05)
    client.send(*frames)
    while client.read(0.5):
        pass
    assert sum(answer.ended for answer in client.answers.values()) == 65535 // 5
    client.send(f.window_update(0, 1000))
    for number in range(calls):
        assert client.answer(1 + 2 * number).body == b"\0" * 5


def test_a_compressed_message_is_unimplemented(site, raw):
    client = raw()
    client.send(
        f.frame(f.HEADERS, f.END_HEADERS, 1, encode_headers((*CALL, (b"grpc-encoding", b"gzip"))))
    )
    client.body(1, grpc_body(b"whatever", compressed=1))
    answer = client.answer(1)
    assert (answer.status, answer.headers["grpc-accept-encoding"]) == ("12", "identity")


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0\0\0\x09abc", grpc_body(b"") * 2],
    ids=["none", "cut", "short", "two"],
)
def test_a_body_that_isn_t_one_message_is_an_error_of_its_call(raw, body):
    client = raw()
    client.send(f.frame(f.HEADERS, f.END_HEADERS, 1, _BLOCK))
    client.body(1, body)
    assert client.answer(1).status == "13"
    client.call(3, _PROBE)
    assert client.answer(3).status == "0"


def test_a_call_without_body_is_an_error_of_its_call(raw):
    client = raw()
    client.send(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, _BLOCK))
    assert client.answer(1).status == "13"


def test_a_message_above_4_gib_is_refused_before_it_is_sent(raw):
    client = raw()
    client.send(
        f.frame(f.HEADERS, f.END_HEADERS, 1, _BLOCK),
        f.frame(f.DATA, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 100),
    )
    answer = client.answer(1)
    assert answer.status == "8"
    assert "larger than max" in answer.headers["grpc-message"]


def test_headers_of_7_kb_and_other_metadata_are_fine(site, raw):
    client = raw()
    headers = (*CALL, *((b"x-meta-%d" % i, b"v" * 700) for i in range(10)))
    _write_and_check(site, client, lambda stream, message: client.call(stream, message, headers))


def _data_for(stream):
    return f.frame(f.DATA, f.END_STREAM, stream, grpc_body(b""))


def _broken(at):
    """Each case as bytes on stream `at`, and the error code of the GOAWAY."""
    opened = f.frame(f.HEADERS, f.END_HEADERS, at, _BLOCK)
    start = f.frame(f.HEADERS, 0, at, b"")
    return {
        "frame too large": (b"\x00\x40\x01\0\0" + at.to_bytes(4, "big"), f.FRAME_SIZE_ERROR),
        "data on an idle stream": (_data_for(at), f.PROTOCOL_ERROR),
        "data on stream 0": (_data_for(0), f.PROTOCOL_ERROR),
        "headers on stream 0": (f.frame(f.HEADERS, f.END_HEADERS, 0, _BLOCK), f.PROTOCOL_ERROR),
        "an even stream": (f.frame(f.HEADERS, f.END_HEADERS, at + 1, _BLOCK), f.PROTOCOL_ERROR),
        "headers twice": (opened + opened, f.PROTOCOL_ERROR),
        "bad header block": (
            f.frame(f.HEADERS, f.END_HEADERS, at, b"\xff" * 6),
            f.COMPRESSION_ERROR,
        ),
        "a frame inside a header block": (start + _data_for(at), f.PROTOCOL_ERROR),
        "continuation of nothing": (f.frame(f.CONTINUATION, 0, at, b""), f.PROTOCOL_ERROR),
        "continuation of another": (
            start + f.frame(f.CONTINUATION, 0, at + 2, b""),
            f.PROTOCOL_ERROR,
        ),
        "endless continuation": (
            start + f.frame(f.CONTINUATION, 0, at, b"") * 100,
            f.ENHANCE_YOUR_CALM,
        ),
        "a header block of 1 MB": (
            start + f.frame(f.CONTINUATION, 0, at, b"\0" * 16000) * 60,
            f.ENHANCE_YOUR_CALM,
        ),
        "padding beyond the frame": (
            opened + f.frame(f.DATA, f.PADDED, at, b"\x09abc"),
            f.PROTOCOL_ERROR,
        ),
        "priority cut off": (
            f.frame(f.HEADERS, f.PRIORITY_FLAG | f.END_HEADERS, at, b"\0\0"),
            f.FRAME_SIZE_ERROR,
        ),
        "short ping": (f.frame(f.PING, 0, 0, b"1234"), f.FRAME_SIZE_ERROR),
        "short settings": (f.frame(f.SETTINGS, 0, 0, b"12345"), f.FRAME_SIZE_ERROR),
        "settings on a stream": (f.frame(f.SETTINGS, 0, at, b""), f.PROTOCOL_ERROR),
        "window of 2^31": (
            f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 2**31}),
            f.FLOW_CONTROL_ERROR,
        ),
        "window overflow": (f.window_update(0, 2**31 - 1), f.FLOW_CONTROL_ERROR),
        "window update of 0": (f.window_update(0, 0), f.PROTOCOL_ERROR),
        "short window update": (f.frame(f.WINDOW_UPDATE, 0, 0, b"1"), f.FRAME_SIZE_ERROR),
        "reset of an idle stream": (
            f.frame(f.RST_STREAM, 0, at + 6, b"\0\0\0\x08"),
            f.PROTOCOL_ERROR,
        ),
        "a push": (f.frame(f.PUSH_PROMISE, f.END_HEADERS, at, b"\0\0\0\x02"), f.PROTOCOL_ERROR),
    }


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("lane", [False, True], ids=["before the first call", "on a lane"])
@pytest.mark.parametrize("case", _broken(1))
def test_broken_frames_end_their_connection_with_a_goaway_that_says_why(raw, case, lane):
    data, code = _broken(3 if lane else 1)[case]
    client = raw()
    if lane:
        client.call(1, _PROBE)
        client.answer(1)
    client.send(data)
    client.wait_closed()
    assert client.goaway is not None, client.frames
    assert client.goaway[0] == code, client.goaway
    assert client.goaway[1]


_GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200),  # a TLS client
    b"\0" * 1000,
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + b"\0" * 50,
    b"GET / HTTP/1.1\r\nbroken header\r\n\r\n",
    b"GET /" + b"a" * 100_000,
    b"\r\n" * 2000,
]


@pytest.mark.parametrize(
    "data", _GARBAGE, ids=["tls", "zeros", "ssh", "preface", "header", "long", "newlines"]
)
def test_garbage_first_bytes_end_only_their_connection(site, data):
    host, port = site.pumps[0].address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass


def test_random_bytes_after_the_preface_never_bring_the_pump_down(site, raw):
    """Mutated real traffic and plain noise; `serving` checks afterwards that the pump is well."""
    noise = random.Random(20261121)
    start = f.frame(f.HEADERS, f.END_HEADERS, 1, _BLOCK)
    for number in range(300):
        client = RawClient(site.pumps[0].address)
        data = bytearray()
        if number % 3:
            data += start + f.frame(f.DATA, f.END_STREAM, 1, grpc_body(b""))
        for stream in range(3, 9, 2):
            data += f.frame(f.HEADERS, f.END_HEADERS, stream, _BLOCK)
            data += f.frame(f.DATA, f.END_STREAM, stream, grpc_body(request(b"", CLUSTER)))
        for _ in range(noise.randint(1, 8)):
            at = noise.randrange(len(data))
            if noise.random() < 0.5:
                data[at] = noise.randrange(256)
            else:
                data[at : at + noise.randint(0, 9)] = noise.randbytes(noise.randint(0, 9))
        client.send(bytes(data))
        client.read(0.005)
        client.close()
