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

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.settings import Settings
from sluice.relay.measures import ConflictHistory
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.tidb_stand_in import Seen
from tests.etl.two_clusters import BINLOG, Cluster, direction, last_writes

_PATIENCE_S = 120


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[MariaDBServer]]:
    found = [MariaDBServer(tmp_path_factory.mktemp("mariadb"), *BINLOG) for _ in range(2)]
    for server in found:
        server.start()
    yield found
    for server in found:
        server.kill()


class Pair:
    """Two clusters, and the pipelines between them, which run in threads."""

    def __init__(
        self, servers: list[MariaDBServer], folder: Path, ahead_ms: int, conflicts: str
    ) -> None:
        for server in servers:
            server.empty()
        self.east = Cluster(servers[0], folder, 1, ahead_ms)
        self.west = Cluster(servers[1], folder, 2)
        self.settings = {
            self.west.cluster_id: direction(self.east, self.west, folder, conflicts),
            self.east.cluster_id: direction(self.west, self.east, folder, conflicts),
        }
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._land)]
        self._runs: dict[int, threading.Event] = {}
        for target in (self.west, self.east):
            self._threads.append(threading.Thread(target=self._apply, args=(target,)))
        for thread in self._threads:
            thread.start()

    def _land(self) -> None:
        while not self._stop.is_set():
            for cluster in (self.east, self.west):
                cluster.land()
            time.sleep(0.03)

    def _apply(self, target: Cluster) -> None:
        settings = self.settings[target.cluster_id]
        while not self._stop.is_set():
            ends = self._runs[target.cluster_id] = threading.Event()
            prepare = local_preparer(settings)
            try:
                run_apply(settings, stop=ends, run_seconds=_PATIENCE_S, prepare=prepare)
            except BaseException as error:
                self.errors.append(error)
                return

    def kill(self, target: Cluster, seed: int) -> None:
        """End the pipeline that writes to `target` at some statement, and start another one."""
        chance = random.Random(seed)
        target.tidb.seen = Seen(cut=lambda statement: chance.random() < 0.02)
        end = time.monotonic() + 2
        while not target.tidb.seen.is_cut and time.monotonic() < end:
            time.sleep(0.01)
        self._runs[target.cluster_id].set()
        time.sleep(0.05)
        target.tidb.seen = Seen()

    def failed(self, seconds: float) -> bool:
        """Return whether a pipeline stops with an error within this time."""
        end = time.monotonic() + seconds
        while not self.errors and time.monotonic() < end:
            time.sleep(0.02)
        return bool(self.errors)

    def wait_until_equal(self) -> None:
        """Wait until both pipelines have applied all that there is."""
        for origin, target in ((self.east, self.west), (self.west, self.east)):
            through, end = origin.now(), time.monotonic() + _PATIENCE_S
            while (at := checkpoint_of(self.settings[target.cluster_id], origin)) < through:
                assert not self.errors, self.errors
                assert time.monotonic() < end, f"the checkpoint stays at {at}"
                time.sleep(0.05)

    def close(self) -> None:
        self._stop.set()
        for run in self._runs.values():
            run.set()
        for thread in self._threads:
            thread.join(30)
        self.east.close()
        self.west.close()


def checkpoint_of(settings: Settings, origin: Cluster) -> int:
    found = read_checkpoint(settings.target, origin.cluster_id)
    return found.commit_ts if found is not None else 0


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
        assert ConflictHistory(both.settings[2].open_relay()).load()


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
