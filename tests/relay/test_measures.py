"""What tasks count lives through the processes that count, once each, and never stands in
replication's way.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from pathlib import Path

import pytest

from sluice.relay import RelayLog
from sluice.relay.measures import (
    HOUR,
    LAND,
    WEEK,
    CounterDocument,
    CounterRecorder,
    CounterStore,
    Durations,
    LagPoint,
    StateHistory,
    StateSample,
    TableCount,
    source_of,
)
from sluice.relay.measures.counters import MAX_TABLES, OTHER_TABLES, TableCounters
from sluice.relay.measures.points import DAY, LagStep, append_step, merge_series
from sluice.tidb import tso

DOWNSTREAM = "db:3306, checkpoint tidb_binlog.checkpoint"
APPLY = source_of(DOWNSTREAM)
NEVER_S = 3600.0


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(f"file://{tmp_path}/relay")


def recorder(relay: RelayLog, source: str = APPLY) -> CounterRecorder:
    return CounterRecorder(CounterStore(relay), source, every_s=NEVER_S)


def test_a_process_goes_on_counting_where_the_one_before_left_off(relay: RelayLog) -> None:
    for _ in range(3):
        process = recorder(relay)
        process.count({"transactions": 2, "changes": 5}, {"execute": 0.5})
        process.changed({"shop.orders": (3, 1, 1)}, 77)
        process.close()
    found = CounterStore(RelayLog.open(relay.url)).totals().apply
    assert found.counts == {"transactions": 6, "changes": 15}
    assert found.durations["execute"].count == 3
    assert found.durations["execute"].sum_s == 1.5
    table = CounterStore(relay).tables()["shop.orders"]
    assert (table.inserts, table.updates, table.deletes, table.last_commit_ts) == (9, 3, 3, 77)


def test_what_many_processes_count_at_a_time_is_counted_once_each(
    relay: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sluice.relay.measures.recorder._CLOSE_TIMEOUT_S", 300.0
    )  # for an object store that fails, and a busy machine

    def work() -> None:
        process = recorder(relay)
        for _ in range(5):
            process.count({"windows": 1})
            process.changed({"a.b": (1, 0, 0)}, 1)
        process.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CounterStore(relay).totals().apply.counts == {"windows": 30}
    assert CounterStore(relay).tables()["a.b"].inserts == 30


def test_an_addition_whose_answer_was_lost_counts_once_when_it_is_tried_again(
    relay: RelayLog,
) -> None:
    measures = CounterStore(relay)
    for number in (1, 1, 2, 2, 1):
        measures.note(LAND, CounterDocument({"windows": 1}), "process", number)
        measures.add_tables(APPLY, {"a.b": TableCount(1)}, "process", number)
    measures.note(LAND, CounterDocument({"windows": 1}), "another", 1)
    assert measures.totals().land.counts == {"windows": 3}
    assert measures.tables()["a.b"].inserts == 2


class Unwritable(CounterStore):
    """A place that takes nothing until `broken` is over, though the first thing it was given did
    arrive.
    """

    broken = True
    tries = 0

    def note(self, source: str, measured: CounterDocument, token: str, number: int) -> None:
        self.tries += 1
        if not self.broken or self.tries == 1:
            super().note(source, measured, token, number)
        if self.broken:
            raise OSError("no space left on device")


def test_lag_is_by_the_clock_of_tidb_which_a_replayed_one_has_days_behind(relay: RelayLog) -> None:
    day_ms, now_ms = 86_400_000, time.time_ns() // 1_000_000
    for source, age_ms in ((APPLY, 8 * day_ms + 500.0), (LAND, None)):
        process = CounterRecorder(
            CounterStore(relay), source, every_s=NEVER_S, upstream_skew_ms=lambda: -8.0 * day_ms
        )
        process.at(tso.compose(now_ms - 8 * day_ms - 500))
        if age_ms is not None:
            process.observe_age(age_ms)
        process.close()
    (point,) = [
        each for each in CounterStore(relay, DOWNSTREAM).points(HOUR) if each.lag_ms is not None
    ]
    assert all(500 <= (lag or 0) < 60_000 for lag in (point.lag_ms, point.land_lag_ms))


def test_what_cannot_be_written_is_said_once_kept_and_counted_once_when_it_can(
    relay: RelayLog, caplog: pytest.LogCaptureFixture
) -> None:
    place = Unwritable(relay)
    process = CounterRecorder(place, APPLY, every_s=0.01)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            process.count({"transactions": 1})
            tries = place.tries
            while place.tries == tries:
                time.sleep(0.005)
        place.broken = False
        process.close()
    assert CounterStore(relay).totals().apply.counts == {"transactions": 5}
    assert caplog.text.count("can't be added to the measures") == 1
    assert "no space left on device" in caplog.text


def test_a_process_that_ends_does_not_wait_for_measures_that_nobody_takes_and_says_so(
    relay: RelayLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.relay.measures.recorder._CLOSE_TIMEOUT_S", 0.01)
    place, goes_on = CounterStore(relay), threading.Event()
    monkeypatch.setattr(place, "note", lambda *_: goes_on.wait())
    process = CounterRecorder(place, APPLY, every_s=NEVER_S)
    process.count({"transactions": 1})
    with caplog.at_level(logging.WARNING):
        process.close()
    goes_on.set()
    assert "counted last may be missing from the measures in the relay log" in caplog.text


def test_each_downstream_has_its_own_measures_and_all_together_are_their_sum(
    relay: RelayLog,
) -> None:
    for where, changes in ((DOWNSTREAM, 3), ("files in /there", 4)):
        process = recorder(relay, source_of(where))
        process.count({"changes": changes})
        process.changed({"a.b": (changes, 0, 0)}, 1)
        process.close()
    assert CounterStore(relay, DOWNSTREAM).totals().apply.counts == {"changes": 3}
    assert CounterStore(relay, "files in /there").tables()["a.b"].inserts == 4
    assert CounterStore(relay).totals().apply.counts == {"changes": 7}
    assert CounterStore(relay).tables()["a.b"].inserts == 7


def test_lag_grows_with_the_clock_while_nothing_is_applied(relay: RelayLog) -> None:
    process = recorder(relay)
    process.at(tso.compose(time.time_ns() // 1_000_000 - 60_000))
    process.close()
    (point,) = CounterStore(relay).points(HOUR)
    assert point.lag_ms is not None
    assert point.lag_ms >= 60_000
    assert point.land_lag_ms is None


def test_points_of_an_hour_and_a_day_are_few_and_lose_no_change_and_no_peak() -> None:
    hour: tuple[LagStep, ...] = ()
    day: tuple[LagStep, ...] = ()
    begin = 1_800_000_000_000
    for n in range(0, 90_000, 20):  # 25 hours, a step every twenty seconds
        step = LagStep(begin + n * 1000 + 1, 20_000, 7_000.0 if n == 80_000 else 100.0, 200, 5)
        hour, day = append_step(hour, step, HOUR), append_step(day, step, DAY)
    assert len(hour) <= 361
    assert len(day) <= 289
    points = merge_series((), day, DAY)
    assert {point.rows_per_s for point in points} == {10.0}
    assert max(point.lag_ms or 0 for point in points) == 7_000.0
    assert all(b.at_ms - a.at_ms == DAY.step_ms for a, b in itertools.pairwise(points))


def test_a_week_is_kept_in_half_hours_with_windows_errors_and_ddl(relay: RelayLog) -> None:
    begin = 1_800_000_000_000
    for n in range(9 * 48):  # nine days, an addition every half hour
        step = LagStep(begin + n * 1_800_000, 10_000, 5.0, 20, 2, windows=50, errors=1, ddls=n % 2)
        CounterStore(relay).note(LAND, CounterDocument(hour=(step,)), "process", n + 1)
    points = CounterStore(relay).points(WEEK)
    assert len(points) == 7 * 48
    assert {(point.windows_per_s, point.errors) for point in points} == {(5.0, 1)}
    assert sum(point.ddls for point in points) == 7 * 24
    assert len(CounterStore(relay).totals().land.to_json()) < 40_000


def test_steps_of_before_windows_and_errors_were_counted_are_read() -> None:
    document = {
        "counts": {}, "durations": {}, "at_ts": 1, "since_ms": 1, "noted_ms": 1,
        "hour": [[1, 10, 5.0, 20, 2]], "day": [], "writers": {},
    }  # fmt: skip
    found = CounterDocument.from_json(json.dumps(document).encode())
    assert found.hour == (LagStep(1, 10, 5.0, 20, 2, 0, 0, 0),)
    assert found.week == ()


def test_a_table_s_changes_are_known_by_hour_for_a_day() -> None:
    found = TableCounters()
    for hour in range(1000, 1030):
        new = TableCount(1, 0, 0, hour, 0, ((hour, 2),))
        found = found.plus({"a.b": new, "a.c": TableCount(1)}, "process", hour)
    read = TableCounters.from_json(found.to_json()).tables
    assert read["a.b"].inserts == 30
    assert read["a.b"].last_hours(1030 * 3_600_000) == [2] * 23 + [0]
    assert read["a.c"].hours == ()


@pytest.mark.slow
def test_states_are_thinned_out_with_age_and_forgotten_after_a_week(relay: RelayLog) -> None:
    states, begin = StateHistory(relay), 1_800_000_000_000
    for n in range(0, 8 * 24 * 60, 10):  # eight days, every ten minutes
        states.note(StateSample(begin + n * 60_000, float(n), None))
    found = states.samples()
    assert [*found] == sorted(found)
    assert found[-1] == StateSample(begin + (8 * 1440 - 10) * 60_000, 8 * 1440 - 10.0, None)
    assert len(found) == pytest.approx(6 * 48 + 144, abs=2)


def test_points_say_together_what_landing_and_applying_said_of_the_same_moment() -> None:
    at = 1_800_000_000_000
    land, applied = (
        [LagStep(at + 1000, 10_000, 40.0, 0, 0)],
        [LagStep(at + 9000, 10_000, 200.0, 1000, 10)],
    )
    assert merge_series(land, applied, HOUR) == [LagPoint(at + 10_000, 200.0, 40.0, 100.0, 1.0)]


def test_more_tables_than_are_kept_are_counted_together_the_oldest_first() -> None:
    tables = {f"a.t{n}": TableCount(1, 0, 0, n + 1) for n in range(MAX_TABLES + 5)}
    kept = (
        TableCounters()
        .plus(tables, "process", 1)
        .plus({"a.new": TableCount(1, 0, 0, 10**9)}, "process", 2)
        .tables
    )
    assert len(kept) == MAX_TABLES
    assert "a.new" in kept
    assert "a.t0" not in kept
    assert sum(one.inserts for one in kept.values()) == MAX_TABLES + 6
    assert kept[OTHER_TABLES].inserts == 7


def test_ten_thousand_tables_are_read_back_as_they_were() -> None:
    tables = {f"schema_{n % 9}.`täble` {n}": TableCount(n, 2, 3, n << 18, n) for n in range(10_000)}
    document = TableCounters().plus(tables, "process", 1)
    assert TableCounters.from_json(document.to_json()) == document


def test_durations_fall_into_the_bucket_that_holds_them() -> None:
    found = Durations.from_seconds([0.001, 0.0011, 10_000.0])
    assert found.counts[:2] == (1, 1)
    assert found.counts[-1] == 1
    assert found.count == 3


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"counts": 1}'])
def test_damaged_measures_are_an_error_and_no_zeros(text: bytes) -> None:
    with pytest.raises(ValueError):
        CounterDocument.from_json(text)
    with pytest.raises(ValueError):
        TableCounters.from_json(text)
