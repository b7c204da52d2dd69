"""A downstream that is far away gets larger batches of a backlog, so that waiting for it isn't most
of the time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.bench.far_proxy import FarProxy
from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.apply._adaptive_limits import MORE_BYTES, MORE_ROWS, AdaptiveLimits
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import INSERT, Part, WindowRecord
from sluice.tidb.rows import encode_insert
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History

FAR = Apply("parallel", 2, 1_000, 1_000_000)


def window(changes: int, size: int = 0) -> WindowRecord:
    part = Part("p", changes, 1, size, 0, 1, 2)
    return WindowRecord(1, 2, 7, "t", 0, 1, changes, 0, (part,))


def test_batches_grow_while_one_takes_less_than_a_hundred_round_trips_and_stay_bounded() -> None:
    size = AdaptiveLimits(FAR)
    seen = []
    for _ in range(5):
        size.observe([window(size.max_rows)], busy_s=1.3, round_trip_s=0.05)
        seen.append((size.max_rows, size.max_bytes))
    assert seen[:2] == [(3_846, 3_846_153), (14_792, 4_000_000)]
    assert seen[2:] == [(1_000 * MORE_ROWS, 1_000_000 * MORE_BYTES)] * 3
    size.observe([window(16_000)], busy_s=40.0, round_trip_s=0.05)  # the server takes no more
    assert size.max_rows == 2_000
    size.observe([window(2_000)], busy_s=1.0, round_trip_s=0.0002)  # it has moved near by
    assert (size.max_rows, size.max_bytes) == (1_000, 1_000_000)


def test_large_rows_count_by_their_bytes() -> None:
    size = AdaptiveLimits(FAR)
    size.observe([window(10, 1_000_000)], busy_s=2.5, round_trip_s=0.05)
    assert size.max_bytes == 2_000_000


def test_batches_stay_as_the_settings_say_without_a_backlog_near_by_and_in_one_transaction() -> (
    None
):
    for apply, changes, round_trip_s in (
        (FAR, 499, 0.05),
        (FAR, 1_000, 0.0002),
        (FAR, 1_000, 0.0),
        (replace(FAR, mode="atomic"), 1_000, 0.05),
    ):
        size = AdaptiveLimits(apply)
        size.observe([window(changes)], busy_s=0.2, round_trip_s=round_trip_s)
        assert (size.max_rows, size.max_bytes) == (1_000, 1_000_000)


@pytest.mark.slow
def test_a_backlog_goes_far_away_in_less_than_half_the_round_trips(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    plain, history = TABLES["plain"], History(0)
    for number in range(1, 601):
        row = history.rows["plain"][number] = {"id": number, "v": number % 7}
        insert = "plain", INSERT, encode_insert(plain, history.with_rowid("plain", number, row))
        history.transactions.append(((1 << 40) + number, [insert]))
    relay = history.land(f"file://{tmp_path}/relay", [5])
    fresh(mariadb).close()
    batches: list[BatchReport] = []
    last = relay.last()
    assert last is not None
    with FarProxy(mariadb.port, delay_s=0.01) as proxy:
        downstream = replace(mariadb.downstream, port=proxy.port)
        settings = Settings(
            Upstream("unused"), Relay(relay.url), downstream, apply=Apply("parallel", 2, 10)
        )
        run_apply(
            settings,
            until_ts=last.hi,
            run_seconds=600,
            prepare=local_preparer(settings),
            on_batch=batches.append,
        )
    sizes = [batch.changes for batch in batches]
    assert sizes[0] == 10
    assert sum(sizes) == 600
    assert max(sizes) <= 10 * MORE_ROWS
    assert len(sizes) <= 30  # of 60
    assert proxy.turns[0] <= 60 + 10 * len(sizes)  # 60 until the session is set up
    with mariadb.connect() as connection:
        assert rows_of(connection, "plain") == history.expected("plain")
