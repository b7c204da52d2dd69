"""What the scan over many messages finds is what protobuf itself finds, whichever way it goes about
it.
"""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing.extract import BinlogDecodeError, _wire_scan, kernel
from sluice.etl.landing.extract._wire_scan import (
    FIXED32,
    FIXED64,
    LENGTH,
    RUN_WIRE_TYPE,
    VARINT,
    WireError,
    scan,
)
from sluice.etl.landing.extract.kernel import plain
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.schema import MAX_USER_TABLE_ID
from tests.etl.landing.extract.test_explode import DELETE, INSERT, UPDATE, explode
from tests.examples import examples


@pytest.fixture(params=[1, 3, 10**9], ids=["in steps", "steps, then one by one", "one by one"])
def way(request, monkeypatch):
    monkeypatch.setattr(kernel, "scan", plain.scan)
    monkeypatch.setattr(_wire_scan, "_MIN_VECTORIZED_LANES", request.param)
    monkeypatch.setattr(_wire_scan, "_LARGE_MESSAGE_BYTES", 300 if request.param == 3 else 2**40)


def scanned(messages, run_tag=-1):
    """The fields of each message as (tag, value or bytes), with runs taken apart."""
    joined = b"??" + b"".join(messages)  # what lies before and behind must not matter
    ends = np.cumsum([2, *map(len, messages)])
    fields = scan(np.frombuffer(joined, np.uint8), ends[:-1], ends[1:], run_tag)
    found = [[] for _ in messages]
    assert (np.diff(fields.owner) >= 0).all()
    for owner, tag, begin, end in zip(*(column.tolist() for column in fields)):
        if tag & 7 == VARINT:
            found[owner].append((tag, begin))
        elif tag & 7 == RUN_WIRE_TYPE:
            found[owner] += [(tag & ~7, value) for value in joined[begin + 1 : end : 2]]
        else:
            found[owner].append((tag, joined[begin:end]))
    return found


def encoded(tag, value):
    if tag & 7 == VARINT:
        return encode_uvarint(tag) + encode_uvarint(value & (2**64 - 1))
    return encode_uvarint(tag) + (encode_uvarint(len(value)) if tag & 7 == LENGTH else b"") + value


numbers = st.integers(1, 20) | st.sampled_from([2**11, 2**28 - 1])
field = st.one_of(
    st.tuples(
        numbers.map(lambda n: n << 3 | VARINT),
        st.integers(0, 200) | st.integers(-(2**63), 2**63 - 1),
    ),
    st.tuples(
        numbers.map(lambda n: n << 3 | LENGTH),
        st.binary(max_size=20) | st.sampled_from([b"x" * 127, b"x" * 128, b"y" * 20_000]),
    ),
    st.tuples(numbers.map(lambda n: n << 3 | FIXED64), st.binary(min_size=8, max_size=8)),
    st.tuples(numbers.map(lambda n: n << 3 | FIXED32), st.binary(min_size=4, max_size=4)),
)
messages = st.lists(
    st.lists(field, max_size=6)
    | st.lists(st.tuples(st.just(0x38), st.integers(0, 130)), max_size=150),
    max_size=8,
)


@pytest.mark.usefixtures("way")
@settings(max_examples=examples(60), deadline=None)
@given(messages)
def test_every_field_is_found_where_it_lies(wanted):
    written = [b"".join(encoded(*each) for each in fields) for fields in wanted]
    assert scanned(written) == wanted
    assert scanned(written, run_tag=0x38) == wanted


@pytest.mark.usefixtures("way")
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(field, min_size=1, max_size=4), st.data())
def test_a_message_that_breaks_off_is_refused_and_told_from_the_others(fields, data):
    whole = b"".join(encoded(*each) for each in fields)
    inside = len(whole) - len(encoded(*fields[-1]))
    cut = whole[: data.draw(st.integers(inside + 1, len(whole) - 1))]
    with pytest.raises(WireError) as caught:
        scanned([whole, cut, whole, cut])
    assert caught.value.owner == 1


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\x0f",
        b"\x00\x01",
        b"\x02\x00",
        b"\x80",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x80\x80\x80\x80\x10\x01",
        b"\x0a" + b"\xff" * 9 + b"\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
    ids=bytes.hex,
)
def test_what_is_no_field_is_refused(garbage):
    with pytest.raises(WireError):
        scanned([b"\x08\x01", garbage, garbage + bytes(40)])


def reference(rows):
    """What `explode` should make of transactions, by way of protobuf's own messages.

    None where it should refuse.
    """
    changes = []
    for commit_ts, start_ts, payload in rows:
        try:
            binlog = pb.binlog.Binlog.FromString(payload)
            value = pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)
        except DecodeError:
            return None
        if binlog.tp or binlog.start_ts != start_ts:
            return None
        is_ddl = bool(binlog.ddl_query and binlog.ddl_job_id)
        if (binlog.HasField("ddl_query") and not is_ddl) or not (
            is_ddl or binlog.HasField("prewrite_value")
        ):
            return None
        position = 0
        for made in value.mutations:
            lists = {
                INSERT: list(made.inserted_rows),
                UPDATE: list(made.updated_rows),
                DELETE: list(made.deleted_rows),
            }
            for kind in made.sequence:
                if not lists.get(kind):
                    return None
                row = lists[kind].pop(0)
                if made.table_id <= MAX_USER_TABLE_ID:
                    changes.append(
                        (
                            commit_ts,
                            start_ts,
                            position,
                            made.table_id,
                            value.schema_version,
                            {0: 0, 1: 1, 4: 2}[kind],
                            row,
                        )
                    )
                    position += 1
            if any(lists.values()) or made.deleted_ids or made.deleted_pks:
                return None
    return changes


def exploded(rows, batch_rows):
    table, _ = explode(rows, batch_rows)
    return list(zip(*(column.to_pylist() for column in table.columns)))


change = st.tuples(
    st.sampled_from([INSERT, UPDATE, DELETE]),
    st.binary(max_size=6) | st.binary(min_size=120, max_size=140),
)


@st.composite
def odd_mutation(draw):
    """A TableMutation with its fields in any order, its sequence partly packed, and fields that
    nobody knows.
    """
    changes = draw(st.lists(change, max_size=8))
    rows = [encoded({INSERT: 0x12, UPDATE: 0x1A, DELETE: 0x32}[kind], row) for kind, row in changes]
    split = draw(st.integers(0, len(changes)))
    packed = b"".join(encode_uvarint(kind) for kind, _ in changes[:split])
    sequence = ([encoded(0x3A, packed)] if split else []) + [
        encoded(0x38, kind) for kind, _ in changes[split:]
    ]
    sequence += draw(
        st.sampled_from(
            [[], [encoded(0x38, 9)], [encoded(0x38, 300)], [encoded(0x3A, b"\x09\xac\x02")]]
        )
    )
    others = [
        encoded(0x08, draw(st.integers(-3, 300))),
        *draw(st.sampled_from([[], [encoded(0x08, 7)], [encoded(0x7A, b"new")]])),
    ]
    merged = []
    for part in draw(st.permutations([rows, sequence, others])):
        merged += part
    if draw(st.booleans()):  # rows among the sequence, as long as each keeps its order
        merged = rows[: len(rows) // 2] + sequence + rows[len(rows) // 2 :] + others
    return b"".join(merged)


@st.composite
def odd_transaction(draw, start_ts):
    value = b"".join(
        encoded(0x12, one) for one in draw(st.lists(odd_mutation(), max_size=4))
    ) + encoded(0x08, draw(st.integers(0, 99)))
    fields = [encoded(0x10, start_ts), encoded(0x2A, value)]
    fields += draw(
        st.sampled_from(
            [[], [encoded(0x08, 0)], [encoded(0x22, b"key")], [encoded(0x79, b"8 bytes!")]]
        )
    )
    if draw(st.integers(0, 9)) == 0:
        fields = [encoded(0x2A, b"the last one counts"), *fields]
        return b"".join(fields)
    return b"".join(draw(st.permutations(fields)))


@st.composite
def odd_transactions(draw):
    return [
        (10 * i + 5, 10 * i + 1, draw(odd_transaction(10 * i + 1)))
        for i in range(draw(st.integers(1, 6)))
    ]


@pytest.mark.usefixtures("way")
@settings(max_examples=examples(60), deadline=None)
@given(odd_transactions(), st.integers(1, 6))
def test_transactions_explode_as_protobuf_reads_them_however_they_are_encoded(rows, batch_rows):
    expected = reference(rows)
    assert expected is not None and exploded(rows, batch_rows) == expected


@pytest.mark.quick_cases("[in steps]", "[one by one]")
@pytest.mark.usefixtures("way")
@settings(max_examples=examples(150), deadline=None)
@given(odd_transactions(), st.data())
def test_damaged_bytes_are_refused_or_mean_what_protobuf_says(rows, data):
    victim = data.draw(st.integers(0, len(rows) - 1))
    commit_ts, start_ts, payload = rows[victim]
    broken = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    rows[victim] = (commit_ts, start_ts, bytes(broken))
    expected = reference(rows)
    try:
        found = exploded(rows, 3)
    except BinlogDecodeError as error:
        assert f"commit_ts {commit_ts}, start_ts {start_ts}" in str(error)
    else:
        assert found == expected
