"""Two clusters that replicate each other, with writers on both sides, end equal."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl.apply.run import ApplyError
from sluice.relay.measures import ConflictHistory
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.running_pipelines import Direction, RunningPipelines
from tests.etl.two_clusters import BINLOG, Cluster, direction, last_writes


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[MariaDBServer]]:
    found = [MariaDBServer(tmp_path_factory.mktemp("mariadb"), *BINLOG) for _ in range(2)]
    for server in found:
        server.start()
    yield found
    for server in found:
        server.kill()


class Pair(RunningPipelines):
    """Two clusters, and the pipelines between them."""

    def __init__(
        self, servers: list[MariaDBServer], folder: Path, ahead_ms: int, conflicts: str
    ) -> None:
        for server in servers:
            server.empty()
        self.east = Cluster(servers[0], folder, 1, ahead_ms)
        self.west = Cluster(servers[1], folder, 2)
        both = ((self.east, self.west), (self.west, self.east))
        super().__init__([Direction(*each, direction(*each, folder, conflicts)) for each in both])

    def close(self) -> None:
        self.end()
        self.east.close()
        self.west.close()


@contextlib.contextmanager
def pair(
    servers: list[MariaDBServer],
    folder: Path,
    ahead_ms: int = 0,
    conflicts: str = "last-commit-wins",
) -> Iterator[Pair]:
    found = Pair(servers, folder, ahead_ms, conflicts)
    try:
        yield found
    finally:
        found.close()


def write(cluster: Cluster, chance: random.Random, keys: int) -> None:
    """One transaction of an application, of a few rows."""
    statements = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        key, value = chance.randrange(keys), chance.randrange(1_000_000)
        statements.append(
            chance.choice(
                [
                    f"INSERT IGNORE INTO d.item VALUES ({key}, {value})",
                    f"UPDATE d.item SET v = {value} WHERE id = {key}",
                    f"UPDATE d.item SET v = {value} WHERE id = {key}",
                    f"DELETE FROM d.item WHERE id = {key}",
                    f"UPDATE IGNORE d.item SET id = {chance.randrange(keys)} WHERE id = {key}",
                ]
            )
        )
    cluster.execute(*statements)


def write_for(
    cluster: Cluster,
    seed: int,
    seconds: float,
    keys: int,
    pauses_s: tuple[float, ...] = (0, 0, 0.005, 0.02),
) -> threading.Thread:
    def run() -> None:
        chance, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            write(cluster, chance, keys)
            time.sleep(chance.choice(pauses_s))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "ahead_ms"),
    [
        pytest.param(1, 400),
        *(
            pytest.param(seed, ahead_ms, marks=pytest.mark.beyond_ci)
            for seed, ahead_ms in ((2, 0), (3, -400), (4, 5), (5, -1))
        ),
    ],
)
def test_both_sides_end_with_the_last_writes_whatever_is_killed(
    servers: list[MariaDBServer], tmp_path: Path, seed: int, ahead_ms: int
) -> None:
    with pair(servers, tmp_path, ahead_ms) as both:
        writers = [
            write_for(cluster, seed * 10 + n, 6, keys=8)
            for n, cluster in enumerate((both.east, both.west, both.east, both.west))
        ]
        for number, target in enumerate((both.east, both.west, both.west, both.east)):
            time.sleep(0.5)
            both.kill(target, seed * 100 + number)
        for thread in writers:
            thread.join()
        both.wait_until_equal()
        assert both.east.rows() == both.west.rows() == last_writes(both.east, both.west)
        assert len(both.east.committed) > 100
        assert ConflictHistory(both.directions[0].settings.open_relay()).load()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "ahead_ms", "tick_ms"),
    [
        pytest.param(seed, ahead_ms, tick_ms, marks=pytest.mark.beyond_ci)
        for seed, ahead_ms, tick_ms in ((1, 300, 1), (2, 0, 40), (3, -300, 40))
    ],
)
def test_both_sides_end_with_the_last_writes_whatever_their_clocks_show(
    servers: list[MariaDBServer], tmp_path: Path, seed: int, ahead_ms: int, tick_ms: int
) -> None:
    with pair(servers, tmp_path, ahead_ms) as both:
        for cluster in (both.east, both.west):
            cluster.tick_ms = tick_ms
        # Short rounds: what goes wrong with a row is undone by the next write of it.
        for round_number in range(15):
            writers = [
                write_for(cluster, seed * 1000 + round_number * 10 + n, 0.3, 2, (0.02, 0.1, 0.2))
                for n, cluster in enumerate((both.east, both.west))
            ]
            for thread in writers:
                thread.join()
            both.wait_until_equal()
            assert both.east.rows() == both.west.rows() == last_writes(both.east, both.west)


@pytest.mark.slow
def test_a_row_that_is_changed_between_snapshot_and_commit_keeps_the_change(
    servers: list[MariaDBServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(servers, tmp_path) as both:
        both.east.execute("INSERT INTO d.item VALUES (1, 10)")
        both.wait_until_equal()
        note, changed = both.west.tidb.note, []

        def change_before_writing(statement: str) -> None:
            if statement.startswith("DELETE FROM `d`.`item`") and not changed:
                changed.append(both.west.execute("UPDATE d.item SET v = 12 WHERE id = 1"))
            note(statement)

        monkeypatch.setattr(both.west.tidb, "note", change_before_writing)
        both.east.execute("UPDATE d.item SET v = 11 WHERE id = 1")
        both.wait_until_equal()
        assert changed == [True]
        assert both.east.rows() == both.west.rows() == {1: 12}


@pytest.mark.slow
@pytest.mark.beyond_ci
def test_by_the_rule_stop_the_younger_stays_and_the_other_is_named(
    servers: list[MariaDBServer], tmp_path: Path
) -> None:
    with pair(servers, tmp_path, conflicts="stop") as both:
        both.east.execute("INSERT INTO d.item VALUES (1, 10)")
        both.wait_until_equal()
        for value in range(20, 80, 2):
            both.east.execute(f"UPDATE d.item SET v = {value} WHERE id = 1")
            both.west.execute(f"UPDATE d.item SET v = {value + 1} WHERE id = 1")
            if both.failed(seconds=2):
                break
        error, *_ = both.errors
        assert isinstance(error, ApplyError)
        text = str(error)
        found = re.search(r"d\.item, key 1: .* commit_ts (\d+) .* older than .* own at (\d+)", text)
        assert found is not None, text
        assert int(found[1]) < int(found[2])
        assert f"sluice txn skip {found[1]}" in text


@pytest.mark.slow
@pytest.mark.beyond_ci
def test_a_row_in_the_way_by_another_unique_key_stops_by_name(
    servers: list[MariaDBServer], tmp_path: Path
) -> None:
    with pair(servers, tmp_path) as both:
        for cluster in (both.east, both.west):
            cluster.execute("ALTER TABLE d.item ADD UNIQUE (v)")
        for value in range(30):
            both.east.execute(f"INSERT INTO d.item VALUES ({2 * value}, {value})")
            both.west.execute(f"INSERT INTO d.item VALUES ({2 * value + 1}, {value})")
            if both.failed(seconds=2):
                break
        for error in both.errors:
            assert isinstance(error, ApplyError)
            assert "table d.item" in str(error)
        assert both.errors
