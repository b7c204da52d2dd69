"""Ranges of a small window become one part, as several parts of it would be read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.etl.landing.extract.worker import LandRanges, _process_ranges
from sluice.relay import Part, RelayLog, read_parts
from sluice.tidb import PumpReadError
from sluice.tidb.rows import encode_insert
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests.etl.landing.extract.test_explode import INSERT, mutation, prewrite
from tests.etl.story import table
from tests.etl.window_pumps import CLUSTER_ID, WindowPump

ITEM = table(11, "item", "id int", primary="id")


def transaction(commit_ts):
    row = encode_insert(ITEM, {"id": commit_ts})
    return commit_ts, commit_ts - 1, prewrite(commit_ts - 1, mutation(11, (INSERT, row)))


def transactions_of(rows):
    """A record batch of (commit_ts, start_ts, payload)."""
    columns = zip(WINDOW_SCHEMA, zip(*rows))
    return pa.record_batch(
        [pa.array(values, field.type) for field, values in columns], WINDOW_SCHEMA
    )


def tasks_of(pumps, token, *, together):
    """The window (0, 100] of these pumps."""
    return [
        {
            "n": n,
            "token": token,
            "lo": 0,
            "hi": 100,
            "host": pump.status.host,
            "range_lo": 0,
            "range_hi": 100,
            "skips": [],
            "is_small": together,
        }
        for n, pump in enumerate(pumps)
    ]


def landed(relay, pumps, token, *, together):
    """The parts that come of it, and the answers."""
    tasks = tasks_of(pumps, token, together=together)
    groups = [tasks] if together else [[task] for task in tasks]
    job = LandRanges(relay.url, CLUSTER_ID)
    answers = [answer for group in groups for answer in _process_ranges(relay, job, group, token)]
    assert [answer["n"] for answer in answers] == list(range(len(tasks)))
    return [Part.from_dict(answer["part"]) for answer in answers if answer["part"]], answers


@pytest.fixture
def pumps():
    """Three: two that hold one transaction both, as TiDB writes again to another pump, and one that
    holds nothing.
    """
    found = [
        WindowPump("a", [transaction(ts) for ts in (10, 30, 50)]),
        WindowPump("b", [transaction(ts) for ts in (20, 30, 60)]),
        WindowPump("c"),
    ]
    yield found
    for pump in found:
        pump.stop()


def test_small_ranges_become_one_part_with_each_transaction_once_in_order(pumps, tmp_path):
    relay = RelayLog.open(tmp_path.as_uri())
    several, _ = landed(relay, pumps, "several", together=False)
    (one,), answers = landed(relay, pumps, "one", together=True)
    assert len(several) == 2
    found = read_parts(relay.storage, [one])
    assert found.equals(read_parts(relay.storage, several))
    assert found["commit_ts"].to_pylist() == [10, 20, 30, 50, 60]
    assert (one.rows, one.transactions) == (5, 5)
    assert [answer["transactions"] for answer in answers] == [3, 3, 0]


def test_what_came_with_the_bounds_is_landed_as_far_as_the_window_reaches_without_asking_again(
    pumps, tmp_path
):
    relay = RelayLog.open(tmp_path.as_uri())
    (read,), answers = landed(relay, pumps, "read", together=True)
    windows = [
        transactions_of([*pump.rows, (110, 109, b"behind the window")]).serialize().to_pybytes()
        for pump in pumps
    ]
    tasks = tasks_of(pumps, "handed", together=True)
    for pump, task, window in zip(pumps, tasks, windows):
        pump.stop()
        task["window"] = window
    handed = _process_ranges(relay, LandRanges(relay.url, CLUSTER_ID), tasks, "handed")
    found = read_parts(relay.storage, [Part.from_dict(handed[0]["part"])])
    assert found.equals(read_parts(relay.storage, [read]))
    assert [answer["transactions"] for answer in handed] == [
        answer["transactions"] for answer in answers
    ]
    tasks[1]["window"] = windows[1][:-8]
    with pytest.raises(PumpReadError, match=r"window from 0 .* is damaged"):
        _process_ranges(relay, LandRanges(relay.url, CLUSTER_ID), tasks, "damaged")


def test_what_cannot_be_read_is_told_of_its_range_and_nothing_is_written(pumps, tmp_path):
    pumps[1].rows.append((70, 69, b"\x12\x05ab"))
    relay = RelayLog.open(tmp_path.as_uri())
    (answer,) = _process_ranges(
        relay, LandRanges(relay.url, CLUSTER_ID), tasks_of(pumps, "one", together=True), "one"
    )
    assert answer["n"] == 1 and "commit_ts 70" in answer["unreadable"]
    assert not list(tmp_path.rglob("*.arrow"))
