"""What is remembered of a record's tables never shows in what is written or read."""

from __future__ import annotations

import json

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.relay import json_cache as known_members
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.format_version import NewerFormatError
from sluice.relay.json_cache import JsonMemberCache, to_text
from tests.examples import examples

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['","tables":{', "}", '\\"']),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(
    st.integers(1, 6).map(str), st.dictionaries(st.text(max_size=6), values) | st.none()
)
others = st.dictionaries(st.sampled_from(["parts", "ddls", "moved", "lo"]), values)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(others, documents, others), min_size=1, max_size=4))
def test_records_are_written_and_read_as_if_nothing_were_remembered(records):
    writing, reading = JsonMemberCache(), JsonMemberCache()
    for before, tables, after in records:
        record = {"format": 1, **before, "tables": tables, **after}
        plain = encode_checksummed(record)
        for _ in range(2):
            assert encode_checksummed(record, {"tables": writing}) == plain
            assert decode_checksummed(plain, 1, ("tables", reading)) == decode_checksummed(plain, 1)


@settings(max_examples=examples(300), deadline=None)
@given(before=others, tables=documents, after=others, data=st.data())
def test_text_that_is_anything_means_what_json_says(before, tables, after, data):
    text = to_text({"format": 1, **before, "tables": tables, "last": 0, **after})[:-1]
    known = JsonMemberCache()
    if data.draw(st.booleans()):
        known.read(to_text(tables), 1)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(
                ["", " ", ",", "}", "{", '"', ":", "1", "null", '"tables":{', ',"tables":{}']
            )
        )
        text = text[:at] + put + text[at + data.draw(st.integers(0, 1)) :]
    body = text.encode()
    sealed = body + b',"crc32c":%d}\n' % google_crc32c.value(body + b"}")

    def read(*more):
        try:
            return decode_checksummed(sealed, 1, *more)
        except (ValueError, AttributeError, NewerFormatError) as error:
            return type(error)

    assert read(("tables", known)) == read()


def test_what_was_changed_is_told_from_what_was_known():
    known = JsonMemberCache()
    first, second = {"name": "t"}, {"name": "u"}
    assert known.pieces({"1": first, "2": second}) == known.pieces({"1": first, "2": second})
    assert "".join(known.pieces({"1": second})) == '{"1":{"name":"u"}}'
    found, _ = known.read('"1":{"name":"u"}}', 0)
    again, end = known.read('"1":{"name":"u"},"2":{"name":"v"}}', 0)
    assert found["1"] is again["1"] and again["2"] == {"name": "v"} and end == 34


@pytest.mark.parametrize(
    "text", ['"1":{}', '"1" :{}}', '"a":{}}', "1:{}}", '"1":{},"1":{}}', '"1":{};', "", '"1":']
)
def test_what_is_written_otherwise_is_left_to_json(text):
    with pytest.raises(ValueError):
        JsonMemberCache().read(text, 0)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(known_members, "_MAX_CACHED_CHARACTERS", 1000)
    known = JsonMemberCache()
    for number in range(500):
        text = "".join(known.pieces({str(number): {"name": f"t{number}"}}))
        assert json.loads(text) == {str(number): {"name": f"t{number}"}}
        assert sum(len(text) for _, text in known._known.values()) == known._characters <= 1000


def test_a_comma_behind_which_nothing_comes_is_refused_as_json_refuses_it():
    body = b'{"format":1,"tables":{},'
    sealed = body + b',"crc32c":%d}\n' % google_crc32c.value(body + b"}")
    with pytest.raises(ValueError):
        decode_checksummed(sealed, 1, ("tables", JsonMemberCache()))
