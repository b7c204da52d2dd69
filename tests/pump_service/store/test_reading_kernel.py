"""The compiled kernel of reading windows says of records what Python says, whatever lies there."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.store.binlog_head import encode_outcome
from sluice.pump_service.store.kernel import KNOWN, NOTHING, ODD, UNCHECKED, plain
from sluice.pump_service.store.segment import HEADER, RECORD_MAGIC, encode_record
from tests.compiled_kernels import compiled_kernel
from tests.examples import examples
from tests.pump_service.storekit import BASE, commit, prewrite


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return compiled_kernel("pump_service/store/kernel", tmp_path_factory.mktemp("store"))


def looked(way, data, base, offsets):
    into = np.full((len(offsets), 6), -7, np.int64)
    way.look(data, base, np.array(offsets, np.int64), into)
    return into.tolist()


timestamps = st.integers(0, 2**63 - 1) | st.integers(BASE, BASE + 2**40)
payloads = st.one_of(
    st.builds(lambda ts, value: prewrite(ts, value).payload, timestamps, st.binary(max_size=40)),
    st.builds(lambda start, ts: commit(start, ts).payload, timestamps, timestamps),
    st.builds(encode_outcome, st.integers(0, 200), timestamps, timestamps),
    st.binary(max_size=50),
)


def without_unchecked(rows):
    """The compiled one has looked at CRCs already."""
    return [[*row[:5], KNOWN if row[5] == UNCHECKED else row[5]] for row in rows]


@settings(max_examples=examples(300), deadline=None)
@given(
    records=st.lists(payloads, min_size=1, max_size=5),
    harms=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 60),
    base=st.sampled_from([0, 7, 2**40]),
    elsewhere=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=3),
)
def test_it_says_what_python_says_of_whatever_lies_there(
    compiled, records, harms, cut, base, elsewhere
):
    data = bytearray()
    offsets = []
    for payload in records:
        offsets.append(base + len(data))
        data += encode_record(payload)
    for at, value in harms:
        data[at % len(data)] = value
    data = bytes(data[: max(1, len(data) - cut)])
    offsets += [place for place in elsewhere if place >= base]
    found, expected = looked(compiled, data, base, offsets), looked(plain, data, base, offsets)
    assert without_unchecked(found) == without_unchecked(expected)
    for (length, crc, tp, _, _, state), offset in zip(found, offsets):
        begin = offset - base + HEADER.size
        if state == KNOWN and tp:
            assert google_crc32c.value(data[begin : begin + length]) == crc
        if state == UNCHECKED:
            assert (
                begin + length > len(data)
                or google_crc32c.value(data[begin : begin + length]) != crc
            )


def test_places_before_the_data_and_behind_it_hold_nothing(compiled):
    data = encode_record(commit(BASE, BASE + 1).payload)
    for way in (compiled, plain):
        assert looked(way, data, 100, [0, 99, 100 + len(data), 2**62])[0] == [
            0,
            0,
            0,
            0,
            0,
            NOTHING,
        ]
        assert [row[5] for row in looked(way, data, 100, [0, 99, 100 + len(data), 2**62])] == [
            NOTHING
        ] * 4


def test_a_header_without_payload_is_no_record(compiled):
    data = encode_record(b"") + encode_record(commit(BASE, BASE + 1).payload)
    for way in (compiled, plain):
        assert looked(way, data, 0, [0])[0] == [0, 0, 0, 0, 0, NOTHING]


def test_what_a_record_is_is_told(compiled):
    odd = b"\x10\x05\x08\x01\x18\x06"
    data = b"".join(
        map(encode_record, [prewrite(BASE).payload, commit(BASE, BASE + 1).payload, odd])
    )
    second = len(encode_record(prewrite(BASE).payload))
    third = second + len(encode_record(commit(BASE, BASE + 1).payload))
    offsets = [0, second, third]
    assert [row[2:] for row in looked(compiled, data, 0, offsets)] == [
        [0, BASE, 0, KNOWN], [1, BASE, BASE + 1, KNOWN], [0, 0, 0, ODD],
    ]  # fmt: skip
    damaged = data[: third - 1] + b"\x01" + data[third:]
    assert looked(compiled, damaged, 0, offsets)[1][2:] == [1, BASE, BASE + 1, UNCHECKED]
    assert looked(compiled, data[: third - 1], 0, offsets[:2])[1][5] == UNCHECKED


def placed(compiled, data, base, offsets, lengths, crcs, targets, size):
    into = np.zeros(size, np.uint8)
    columns = (np.array(column, np.int64) for column in (offsets, lengths, crcs, targets))
    return compiled.place(data, base, *columns, into), into.tobytes()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.data())
def test_payloads_come_together_in_any_order_and_damage_is_seen(compiled, wanted, data):
    order = data.draw(st.permutations(range(len(wanted))))
    base = data.draw(st.sampled_from([0, 16, 2**40]))
    log, offsets = b"", []
    for payload in wanted:
        offsets.append(base + len(log))
        log += encode_record(payload)
    targets, size = [0] * len(wanted), 0
    for i in order:
        targets[i] = size
        size += len(wanted[i])
    lengths, crcs = (
        [len(payload) for payload in wanted],
        [google_crc32c.value(payload) for payload in wanted],
    )
    expected = b"".join(wanted[i] for i in order)
    assert placed(compiled, log, base, offsets, lengths, crcs, targets, size) == (True, expected)
    if size:
        i = data.draw(st.sampled_from([i for i, payload in enumerate(wanted) if payload]))
        at = offsets[i] - base + HEADER.size + data.draw(st.integers(0, len(wanted[i]) - 1))
        broken = log[:at] + bytes([log[at] ^ data.draw(st.integers(1, 255))]) + log[at + 1 :]
        assert not placed(compiled, broken, base, offsets, lengths, crcs, targets, size)[0]


huge = st.sampled_from([-(2**63), -17, -1, 0, 1, 15, 16, 40, 100, 2**31, 2**62, 2**63 - 1])


@settings(max_examples=examples(300), deadline=None)
@given(offset=huge, length=huge, target=huge, base=st.sampled_from([0, 1, 16, 2**62]))
def test_nothing_outside_is_read_or_written(compiled, offset, length, target, base):
    log = encode_record(b"x" * 24)
    fits = (
        offset - base >= 0
        and 0 <= length <= len(log) - (offset - base) - 16
        and 0 <= target <= 24 - length
    )
    is_good, _ = placed(
        compiled, log, base, [offset], [length], [google_crc32c.value(b"x" * 24)], [target], 24
    )
    assert is_good <= fits


def test_arguments_that_dont_fit_are_refused(compiled):
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="six numbers"):
        compiled.look(b"", 0, one, np.zeros(5, np.int64))
    with pytest.raises(ValueError, match="six numbers"):
        compiled.look(b"", -1, none, none)
    with pytest.raises(ValueError, match="a length, a CRC and a target"):
        compiled.place(b"", 0, one, one, one, none, np.zeros(4, np.uint8))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300))
def test_checksums_are_those_of_the_value_log_with_or_without_the_processors_help(compiled, data):
    assert compiled.crc(data, False) == compiled.crc(data, True) == google_crc32c.value(data)
    assert RECORD_MAGIC == 0x823A56E8
