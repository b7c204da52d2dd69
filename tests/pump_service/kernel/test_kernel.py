"""The compiled kernel and the one in Python give the same answers, and it takes just what `admit`
takes.
"""

import random
import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service import kernel
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import (
    _STATIC,
    HpackDecoder,
    HpackError,
    _huffman_codes,
)
from sluice.pump_service.ingest import AdmissionRules, BinlogIngest, WriteRejected
from sluice.pump_service.kernel import EDITION, plain
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.store import Record
from sluice.tidb import build_native as compile_kernels
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from tests.compiled_kernels import compiled_kernel
from tests.pump_service.pumpkit import CLUSTER, no_origins, time_limit

START, COMMIT = 450_000_000_000_000_001, 450_000_000_000_000_009
BLOCK = b"a header block"
LARGEST = 16384
CODES = _huffman_codes()
SOURCE = compile_kernels.ROOT / "pump_service/kernel" / compile_kernels.SOURCE


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return compiled_kernel("pump_service/kernel", tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def ingest():
    ingest = BinlogIngest(
        AdmissionRules(CLUSTER, lambda: "online", time_limit()), None, PumpMetrics(), no_origins()
    )
    ingest.admit(request(binlog()))  # from then on it knows of a timestamp that isn't in the future
    return ingest


def binlog(tp=pb.binlog.Prewrite, start=START, commit=0, **fields):
    message = pb.binlog.Binlog(
        tp=tp, start_ts=start, commit_ts=commit, ddl_job_id=0, ddl_schema_state=0
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message.SerializeToString()


def request(payload, cluster=CLUSTER):
    return b"\x08" + encode_uvarint(cluster) + b"\x12" + encode_uvarint(len(payload)) + payload


def call(stream, message):
    return headers(stream) + body(stream, message)


def headers(stream):
    return f.frame(f.HEADERS, f.END_HEADERS, stream, BLOCK)


def body(stream, message):
    return f.frame(f.DATA, f.END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message)


class Taken:
    """What one call of the kernel's `calls` did."""

    def __init__(
        self,
        kernel,
        ingest,
        data,
        opened=(),
        last=0,
        room=100,
        block=BLOCK,
        opens=lambda block: False,
        **terms,
    ):
        prefix, limit, prewrites, kind = ingest.fast_admission()
        limit, prewrites = terms.get("limit", limit), terms.get("prewrites", prewrites)
        self.opened, self.records, self.streams = dict.fromkeys(opened), [], []
        self.end, self.last, self.received = kernel.calls(
            data,
            0,
            block,
            opens,
            self.opened,
            (prefix, limit, prewrites, kind),
            LARGEST,
            last,
            room,
            self.records,
            self.streams,
        )


def test_it_is_of_the_edition_that_its_callers_know(compiled):
    assert compiled.EDITION == EDITION


def test_usual_calls_are_taken_together_in_their_order(compiled, ingest):
    prewrite = binlog(prewrite_key=b"k" * 300, prewrite_value=b"v" * 9000)
    commit = binlog(pb.binlog.Commit, START, COMMIT, prewrite_key=b"k")
    rollback = binlog(pb.binlog.Rollback, START, 0)
    data = b"".join(
        call(1 + 2 * i, request(payload)) for i, payload in enumerate((prewrite, commit, rollback))
    )
    taken = Taken(compiled, ingest, data + headers(7)[:5])
    assert taken.records == [
        Record(0, START, 0, prewrite),
        Record(1, START, COMMIT, commit),
        Record(2, START, 0, rollback),
    ]
    assert all(type(record) is Record for record in taken.records)
    assert (taken.streams, taken.opened, taken.last, taken.end) == ([1, 3, 5], {}, 5, len(data))
    assert taken.received == sum(
        len(request(payload)) + 5 for payload in (prewrite, commit, rollback)
    )


def test_headers_may_come_before_the_bodies_of_others(compiled, ingest):
    message = request(binlog())
    data = body(3, message) + headers(5) + headers(7) + body(5, message) + headers(9)
    taken = Taken(compiled, ingest, data, opened=[3], last=3)
    assert (taken.streams, taken.opened, taken.last, taken.end) == (
        [3, 5],
        {7: None, 9: None},
        9,
        len(data),
    )


def test_no_more_calls_are_opened_than_there_is_room_for(compiled, ingest):
    message = request(binlog())
    data = call(1, message) + call(3, message) + call(5, message)
    taken = Taken(compiled, ingest, data, room=2)
    assert (taken.streams, taken.last, taken.end) == ([1, 3], 3, 2 * len(call(1, message)))


def test_about_other_header_blocks_its_caller_is_asked(compiled, ingest):
    asked = []

    def opens(block):
        asked.append(block)
        return block != b"other"

    message = request(binlog())
    blocks = [BLOCK, b"new", BLOCK, b"", b"other"]
    parts = [
        f.frame(f.HEADERS, f.END_HEADERS, 1 + 2 * i, block) + body(1 + 2 * i, message)
        for i, block in enumerate(blocks)
    ]
    taken = Taken(compiled, ingest, b"".join(parts), opens=opens)
    # a block may mean something else once another one came
    assert asked == [b"new", BLOCK, b"", b"other"]
    assert (taken.streams, taken.last, taken.end) == ([1, 3, 5, 7], 7, sum(map(len, parts[:4])))
    asked.clear()
    assert Taken(compiled, ingest, parts[0], block=None, opens=opens).streams == [1]
    assert asked == [BLOCK]


UNUSUAL = {
    "a fake binlog": binlog(pb.binlog.Rollback, START, START),
    "a Commit at its start": binlog(pb.binlog.Commit, START, START),
    "a Commit before its start": binlog(pb.binlog.Commit, COMMIT, START),
    "a Prewrite with a commit timestamp": binlog(commit=COMMIT),
    "a probe": binlog(start=0),
    "nothing": b"",
    "an obsolete type": binlog(pb.binlog.PreDDL),
    "an unknown field": binlog() + b"\x48\x01",
    "a field twice": binlog() + b"\x40\x00",
    "a start twice": binlog()[:12] + b"\x10" + encode_uvarint(START) + binlog()[12:],
    "other order": binlog()[12:] + binlog()[:12],
    "a long varint": binlog()[:-1] + b"\x80\x00",
    "a negative state": binlog(ddl_schema_state=-1),
    "a key that is cut off": binlog(prewrite_key=b"key")[:-6],
    "a start beyond 64 bits": b"\x08\x00\x10" + b"\xff" * 9 + b"\x7f" + b"\x18\x00\x38\x00\x40\x00",
    "negative timestamps": binlog(start=-5),
    "no type": binlog()[2:],
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_left_where_it_is(compiled, ingest, what):
    first, odd = call(1, request(binlog())), call(3, request(UNUSUAL[what]))
    taken = Taken(compiled, ingest, first + odd)
    assert (taken.streams, taken.last, taken.opened) == ([1], 3, {3: None})
    assert taken.end == len(first) + len(headers(3))


@pytest.mark.parametrize(
    "message",
    [
        request(binlog(), CLUSTER + 1),
        request(binlog()) + b"\x18\x01",
        request(binlog())[:-1],
        b"",
        b"\x12\x00",
    ],
)
def test_requests_of_others_and_broken_ones_are_left(compiled, ingest, message):
    assert Taken(compiled, ingest, call(1, message)).streams == []


def test_messages_with_another_length_or_compressed_are_left(compiled, ingest):
    message = request(binlog())
    for prefix in (
        b"\1" + len(message).to_bytes(4, "big"),
        b"\0" + (len(message) - 1).to_bytes(4, "big"),
        b"\0\0",
    ):
        data = headers(1) + f.frame(f.DATA, f.END_STREAM, 1, prefix + message)
        assert Taken(compiled, ingest, data).end == len(headers(1))


@pytest.mark.parametrize(
    "odd",
    [
        f.frame(f.HEADERS, f.END_HEADERS, 5, b"another block!"),
        f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 5, BLOCK),
        f.frame(f.HEADERS, f.END_HEADERS | f.PADDED, 5, BLOCK),
        f.frame(f.HEADERS, f.END_HEADERS, 4, BLOCK),
        f.frame(f.HEADERS, f.END_HEADERS, 3, BLOCK),
        f.frame(f.HEADERS, f.END_HEADERS, 2**31 + 5, BLOCK),
        f.frame(f.DATA, f.END_STREAM, 3, b"\0\0\0\0\0"),
        f.frame(f.DATA, 0, 5, b"\0\0\0\0\0"),
        f.frame(f.PING, 0, 0, bytes(8)),
        f.HEAD.pack(16385 << 8 | f.DATA, 1, 5) + bytes(16385),
    ],
)
def test_other_frames_end_the_stretch(compiled, ingest, odd):
    first = call(3, request(binlog()))
    taken = Taken(compiled, ingest, first + odd + call(7, request(binlog())))
    assert (taken.streams, taken.opened, taken.last, taken.end) == ([3], {}, 3, len(first))


def test_a_body_on_no_stream_or_on_one_that_is_not_open_is_left(compiled, ingest):
    message = request(binlog())
    for stream in (0, 1, 3, 2**31 + 1):
        assert Taken(compiled, ingest, body(stream, message), last=3).end == 0
    data = call(5, message)
    taken = Taken(compiled, ingest, data + body(5, message), last=3)
    assert (taken.streams, taken.end) == ([5], len(data))


def test_the_terms_of_the_moment_count(compiled, ingest):
    data = call(1, request(binlog())) + call(3, request(binlog(pb.binlog.Commit, START, COMMIT)))
    assert Taken(compiled, ingest, data).streams == [1, 3]
    assert Taken(compiled, ingest, data, prewrites=False).streams == []
    assert Taken(compiled, ingest, data, limit=COMMIT - 1).streams == [1]
    assert Taken(compiled, ingest, data, limit=START - 1).streams == []
    commit = data[len(call(1, request(binlog()))) :]
    assert Taken(compiled, ingest, commit, prewrites=False).streams == [3]


def test_what_it_takes_is_what_admit_makes_of_it(compiled, ingest):
    """Bytes of right requests, changed at random: whatever the kernel takes, `admit` takes as the
    same record.
    """
    chance = random.Random(7)
    right = [
        request(binlog(prewrite_key=b"k" * 20, prewrite_value=b"v" * 30)),
        request(binlog(ddl_query=b"create", ddl_job_id=7)),
        request(binlog(pb.binlog.Commit, START, COMMIT, prewrite_key=b"k" * 20)),
        request(binlog(pb.binlog.Rollback)),
    ]
    seen = [0, 0]
    for _ in range(4000):
        message = bytearray(chance.choice(right))
        for _ in range(chance.choice((0, 1, 1, 2))):
            at = chance.randrange(len(message))
            if chance.random() < 0.2:
                del message[at]
            else:
                message[at] = chance.choice(
                    (0, 1, 2, 8, 16, 24, 34, 42, 50, 56, 64, 127, 128, 255, message[at] ^ 1)
                )
        taken = Taken(compiled, ingest, call(1, bytes(message)))
        seen[bool(taken.records)] += 1
        if taken.records:
            assert taken.records == [ingest.admit(bytes(message))]
        else:
            try:
                ingest.admit(bytes(message))
            except (WriteRejected, AttributeError):  # a probe asks the store, which isn't here
                continue
    assert min(seen) > 500


def test_answers_are_the_same(compiled):
    for streams in ([], [1], [1, 3, 2**31 - 1]):
        assert compiled.replies(streams, f.REPLY_PARTS) == plain.replies(streams, f.REPLY_PARTS)
    with pytest.raises(OverflowError):
        compiled.replies([-1], f.REPLY_PARTS)
    with pytest.raises(TypeError):
        compiled.replies(["1"], f.REPLY_PARTS)


@pytest.mark.parametrize(
    ("first", "limit"), [(0, 1 << 30), (1, 1 << 30), (0, 0), (0, 50), (0, 66), (2, 66), (3, 0)]
)
def test_records_of_the_value_log_are_the_same(compiled, first, limit):
    payloads = (b"one", b"", b"three" * 1000, b"x")
    same = [
        each.framed(payloads, first, 40, limit, 0x823A56E8, crc32c) for each in (compiled, plain)
    ]
    assert same[0] == same[1]
    assert struct.unpack_from("<IQI", same[0][0])[1] == len(payloads[first])


def test_a_checksum_that_fails_fails_the_records(compiled):
    def fails(_):
        raise OSError("no checksum")

    with pytest.raises(OSError, match="no checksum"):
        compiled.framed((b"a",), 0, 0, 100, 1, fails)
    with pytest.raises(TypeError):
        compiled.framed(("text",), 0, 0, 100, 1, crc32c)


def test_entries_of_the_index_are_the_same(compiled):
    columns = ([0, 1, 2], (START, START, 1 << 62), [0, COMMIT, 3], range(5, 3 * 2**32, 2**32))
    put = ([], [])
    for each, into in zip((compiled, plain), put, strict=True):
        each.put_entries(lambda *entry, into=into: into.append(entry), b"ts:", 7, *columns)
    assert put[0] == put[1]
    assert len(put[0]) == 3
    with pytest.raises(IndexError):
        compiled.put_entries(lambda *_: None, b"ts:", 7, [0], [], [0], [0])


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.just(0), st.just(b""))),
        max_size=4,
    ),
    st.sets(st.integers(1, 12)),
    st.integers(0, 12),
)
def test_the_same_prewrites_are_known_or_doubtful(compiled, reads, opened, old_ts):
    outcomes = []
    for each in (compiled, plain):
        of, ended, found = dict.fromkeys(opened, "first"), each.no_ended(), []
        for records in reads:
            repeated, old = [], []
            all_first = each.note(records, "later", of, ended, old_ts, repeated, old)
            found.append((all_first, dict(of), repeated, old))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    for wrong in ([(0,)], [7], [(0, [])], [(1, [])]):
        with pytest.raises((IndexError, TypeError, SystemError)):
            compiled.note(wrong, "", {}, compiled.no_ended(), 0, [], [])
    with pytest.raises(ValueError, match="no_ended"):
        compiled.note([], "", {}, bytearray(8), 0, [], [])


@pytest.mark.parametrize("kernel", ["compiled", "plain"])
def test_of_every_transaction_that_ended_another_prewrite_is_repeated_or_old(compiled, kernel):
    each, count = (compiled if kernel == "compiled" else plain), 3 * plain.ENDED_PER_GENERATION
    starts = list(range(START, START + count))
    random.Random(1).shuffle(starts)
    of, ended = {}, each.no_ended()
    assert each.note([(0, ts, 0, b"") for ts in starts], "", of, ended, 0, [], [])
    assert each.note([(1, ts, 0, b"") for ts in starts], "", of, ended, 0, [], []) and not of
    repeated, old = [], []
    again = [(0, ts, 0, b"") for ts in starts]
    each.note(again, "", of, ended, 0, repeated, old)
    assert not of and len(repeated) + len(old) == count
    assert repeated == again[-len(repeated) :] and len(repeated) >= plain.ENDED_PER_GENERATION
    each.note([(0, START + count, 0, b"")], "new", of, ended, 0, repeated, old)
    assert of == {START + count: "new"}


@pytest.mark.parametrize("key", [b"", b"k" * 7, b"k" * 300])
@pytest.mark.parametrize("value", [b"", b"v" * 700])
def test_what_is_pulled_is_the_same(compiled, key, value):
    prewrite, commit = (
        binlog(prewrite_key=key, prewrite_value=value),
        binlog(1, START, COMMIT, prewrite_key=key),
    )
    whole = binlog(1, START, COMMIT, prewrite_key=key, prewrite_value=value)
    assert compiled.merged(commit, prewrite) == whole
    assert plain.merged(commit, prewrite) in (None, whole)
    assert compiled.pull_message(whole, START, COMMIT) == plain.pull_message(whole, START, COMMIT)


def test_only_what_is_usual_is_merged(compiled):
    prewrite, commit = (
        binlog(prewrite_key=b"k", prewrite_value=b"value"),
        binlog(1, START, COMMIT, prewrite_key=b"k"),
    )
    odd = [
        (commit, binlog(prewrite_key=b"k")),
        (commit, binlog(prewrite_key=b"k", ddl_query=b"create")),
        (commit, b""),
        (commit, binlog(prewrite_key=b"k", prewrite_value=b"v", ddl_job_id=5)),
        (commit + b"\x48\x01", prewrite),
        (binlog(1, 5, 9, prewrite_key=b"k"), prewrite),
        (b"", prewrite),
        (commit[:-2], prewrite),
    ]
    for each in odd:
        assert compiled.merged(*each) is None
        assert plain.merged(*each) is None
    for end in range(len(prewrite)):
        assert compiled.merged(commit, prewrite[:end]) is None
    for end in range(len(commit)):
        assert compiled.merged(commit[:end], prewrite) is None


def huffman(text):
    bits = "".join(format(code, f"0{size}b") for code, size in (CODES[byte] for byte in text))
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8, "big")


def header_block(chance, entries):
    """Fields of every kind, now and then a wrong one."""
    out = b""
    for _ in range(chance.randrange(6)):
        known = [2, 4, 61] + [62, 62 + entries // 2, 61 + entries] * bool(entries)
        index = chance.choice(known) if chance.random() < 0.98 else chance.choice((0, 62 + entries))
        mask, bits = chance.choice(((0x80, 7), (0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4)))
        index = index if mask == 0x80 or chance.random() < 0.7 else 0
        most = (1 << bits) - 1
        out += bytes([mask | index] if index < most else [mask | most, index - most])
        for _ in range(0 if mask == 0x80 else 1 if index else 2):
            text = bytes(
                chance.choices(
                    range(256) if chance.random() < 0.1 else range(48, 58),
                    k=chance.choice((0, 3, 90)),
                )
            )
            coded = huffman(text)
            out += (
                bytes([0x80 | len(coded)]) + coded
                if len(coded) < 127 and chance.random() < 0.7
                else bytes([len(text)]) + text
            )
    return out


def decoded(decoder, block):
    try:
        return decoder.decode(block)
    except HpackError as error:
        return str(error)


def test_header_blocks_mean_the_same(compiled, monkeypatch):
    chance = random.Random(3)
    taken = wrong = 0
    for _ in range(60):
        ours, theirs = HpackDecoder(max_list_size=20_000), HpackDecoder(max_list_size=20_000)
        for _ in range(30):
            block = header_block(chance, len(ours._entries))
            if chance.random() < 0.02 and block:
                block = block[:-1]
            taken += compiled.fields(block, _STATIC, ours._entries) is not None
            monkeypatch.setattr(kernel, "fields", compiled.fields)
            got = decoded(ours, block)
            monkeypatch.setattr(kernel, "fields", plain.fields)
            assert got == decoded(theirs, block)
            if isinstance(got, str):
                wrong += 1
                break
            assert (ours._entries, ours._size) == (theirs._entries, theirs._size)
    assert taken > 200
    assert wrong > 20


def test_without_a_compiler_it_says_so_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert compile_kernels.build(SOURCE, tmp_path / compile_kernels.NAME) != ""
    assert list(tmp_path.iterdir()) == []
