"""A worker is told of many records in a text that names each distinct table once, and reads what
was written.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.history.archive.plan import SegmentPlan, windows_of
from sluice.relay import RecordEncoder, read_records, to_text
from tests.examples import examples
from tests.relay.relaykit import BASE, window

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['","moved":[', "]}", '\\"']),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.text(max_size=6), values, max_size=3) | st.none()
tables = st.dictionaries(st.integers(1, 4).map(str), documents)
moved = st.lists(st.fixed_dictionaries({"job_id": st.integers(1, 3), "before": tables}), max_size=2)
records = st.fixed_dictionaries({"lo": values}, optional={"tables": tables, "moved": moved})


def text_of(found, rest=None):
    text = RecordEncoder()
    for record in found:
        text.add(record)
    return text.to_text(rest)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(records, max_size=5), values)
def test_records_are_read_as_they_were_written_also_where_the_text_is_laid_out_otherwise(
    found, rest
):
    text = text_of(found, rest)
    assert read_records(text) == (found, rest)
    assert read_records(json.dumps(json.loads(text), indent=1)) == (found, rest)


@settings(max_examples=examples(300), deadline=None)
@given(found=st.lists(records, max_size=3), data=st.data())
def test_a_text_that_was_damaged_is_read_as_json_says_or_refused(found, data):
    text = text_of(found)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(["", " ", ",", "}", "{", "]", "[", '"', ":", "1", "null", ',{"1":{}}'])
        )
        text = text[:at] + put + text[at + data.draw(st.integers(0, 1)) :]

    def read(given):
        try:
            return read_records(given)
        except ValueError:
            return ValueError

    try:
        plain = json.dumps(json.loads(text), indent=1)
    except ValueError:
        plain = text
    assert read(text) == read(plain)


def test_a_table_that_windows_repeat_stands_in_the_text_once_and_each_of_its_versions():
    layout = {"name": "x" * 100_000}
    changed = {**layout, "version": 2}
    one = text_of(
        [{"lo": 1, "tables": {"7": layout}, "moved": [{"job_id": 3, "before": {"7": layout}}]}]
    )
    found = [{"lo": n, "tables": {"7": layout}} for n in range(100)]
    found += [{"lo": n, "tables": {"7": dict(changed)}} for n in range(100)]
    found += [
        {"lo": n, "moved": [{"job_id": 3, "before": {"7": dict(layout)}}]} for n in range(100)
    ]
    text = text_of(found)
    assert len(text) < len(one) + 100_000 + 300 * 40
    assert read_records(text)[0] == found


def test_what_the_windows_of_a_text_share_is_one_object():
    layout = {"name": "t"}
    read, _ = read_records(text_of([{"tables": {"1": dict(layout)}} for _ in range(3)]))
    assert read[0]["tables"]["1"] is read[1]["tables"]["1"] is read[2]["tables"]["1"]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", '{"tables":[],"moved":[],"records":[]}',
        '{"tables":[],"moved":[],"records":[{"tables":[0]}],"rest":null}',
        '{"tables":[0],"moved":[],"records":[],"rest":null}',
        '{"tables":[{"1":{}}],"moved":[],"records":[{"tables":[-1]}],"rest":null}',
        '{"tables":[{"1":{}}],"moved":[],"records":[{"tables":{"1":{}}}],"rest":null}',
        '{"tables":[],"moved":[],"records":[1],"rest":null}',
    ],
)  # fmt: skip
def test_what_isn_t_such_a_text_is_refused(text):
    with pytest.raises(ValueError):
        read_records(text)


def test_the_windows_of_a_volume_reach_a_worker_as_they_are_and_damage_on_the_way_is_refused():
    layout = {"id": 7, "name": "t"}
    first = window(
        BASE,
        BASE + 10,
        tables={"7": layout, "8": None},
        skipped=({"commit_ts": BASE + 1, "why": "x"},),
        moved=({"job_id": 3, "before": {"7": layout}},),
        relaxed={"7": [1]},
        ddls=({"commit_ts": BASE + 5},),
    )
    chain = [
        first,
        replace(first, lo=BASE + 10, hi=BASE + 20, ddls=()),
        window(BASE + 20, BASE + 30),
    ]
    told = SegmentPlan.from_windows(chain, 0).records
    read = windows_of(told)
    assert read == chain and [each.to_json() for each in read] == [each.to_json() for each in chain]
    for at in range(0, len(told), 7):
        with pytest.raises(ValueError):
            windows_of(told[:at] + bytes([told[at] ^ 1]) + told[at + 1 :])
    with pytest.raises(ValueError):
        windows_of(told[:-30])


def test_a_text_tells_how_long_it_is():
    text = RecordEncoder()
    for n in range(50):
        text.add({"lo": n, "tables": {str(n % 5): {"name": "t" * 50}}})
        assert 0 <= len(text.to_text()) - text.characters < 60
    assert to_text(read_records(text.to_text())[1]) == "null"
