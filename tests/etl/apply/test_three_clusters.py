"""Three clusters that replicate in a ring, or each to every other, end equal."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.etl.settings import Settings, load_settings
from sluice.relay.measures import CounterStore
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.running_pipelines import Direction, RunningPipelines
from tests.etl.two_clusters import BINLOG, Cluster, last_writes

RING = (11, 12, 13)
"""The channels of the three clusters."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[MariaDBServer]]:
    found = [MariaDBServer(tmp_path_factory.mktemp("mariadb"), *BINLOG) for _ in RING]
    for server in found:
        server.start()
    yield found
    for server in found:
        server.kill()


def pipeline(origin: Cluster, target: Cluster, keys: str, url: str) -> Direction:
    """The pipeline with the relay log `url`; `keys`: of [downstream], and sections behind it."""
    path = Path(url.removeprefix("file://")).with_suffix(".toml")
    path.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{url}"\n'
        f'[window]\nidle-interval-ms = 100\n[downstream]\nhost = "127.0.0.1"\n'
        f'port = {target.tidb.port}\nuser = "sluice"\nloopback-control = true\n{keys}\n'
    )
    return Direction(origin, target, load_settings(path))


class Three(RunningPipelines):
    """Three clusters, and pipelines between them: pairs of positions."""

    def __init__(
        self,
        servers: list[MariaDBServer],
        folder: Path,
        pairs: Sequence[tuple[int, int]],
        keys: Sequence[str],
    ) -> None:
        for server in servers:
            server.empty()
        logs = len(pairs) // len(servers)
        self.clusters = [
            Cluster(server, folder, 1 + n, pipelines=logs) for n, server in enumerate(servers)
        ]
        urls = [iter(cluster.urls) for cluster in self.clusters]
        super().__init__(
            [pipeline(self.clusters[a], self.clusters[b], keys[a], next(urls[a])) for a, b in pairs]
        )

    def close(self) -> None:
        self.end()
        for cluster in self.clusters:
            cluster.close()

    def written(self) -> int:
        """How many transactions applications have written."""
        return sum(
            all(row.table == "d.item" for row in rows)
            for cluster in self.clusters
            for _, rows in cluster.committed
        )


@contextlib.contextmanager
def ring(servers: list[MariaDBServer], folder: Path, mode: str = "atomic") -> Iterator[Three]:
    channels = ", ".join(map(str, RING))
    apply = f'[apply]\nmode = "{mode}"'
    keys = [f"channel-id = {own}\nring = [{channels}]\n{apply}" for own in RING]
    found = Three(servers, folder, [(0, 1), (1, 2), (2, 0)], keys)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def mesh(servers: list[MariaDBServer], folder: Path) -> Iterator[Three]:
    pairs = list(itertools.permutations(range(len(RING)), 2))
    found = Three(servers, folder, pairs, ["channel-id = 11"] * len(RING))
    try:
        yield found
    finally:
        found.close()


def write_for(cluster: Cluster, seed: int, seconds: float) -> threading.Thread:
    """Write rows of the cluster's own keys, in transactions of one to three."""

    def run() -> None:
        chance, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            statements = []
            for _ in range(chance.choice([1, 1, 2, 3])):
                key = 100 * cluster.cluster_id + chance.randrange(20)
                value = chance.randrange(1_000_000)
                statements.append(
                    chance.choice(
                        [
                            f"INSERT INTO d.item VALUES ({key}, {value})"
                            f" ON DUPLICATE KEY UPDATE v = {value}",
                            f"UPDATE d.item SET v = {value} WHERE id = {key}",
                            f"DELETE FROM d.item WHERE id = {key}",
                        ]
                    )
                )
            cluster.execute(*statements)
            time.sleep(chance.choice([0, 0.005, 0.02]))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def returned(settings: Settings) -> int:
    """How many transactions a pipeline left out, as its counter has it."""
    found = CounterStore(settings.open_relay(), settings.downstream_name).totals().apply
    return int(found.counts.get("returned", 0))


def came_back(direction: Direction, channel: int) -> int:
    """How many transactions with rows of marks have a channel, as the origin's binlog has it."""
    through = direction.checkpoint
    marked = (
        [row for row in rows if row.table == "retl._drainer_repl_mark"]
        for commit_ts, rows in direction.origin.committed
        if commit_ts <= through
    )
    return sum(any((row.new or row.old)[1] == channel for row in rows) for rows in marked)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.beyond_ci)])
def test_in_a_ring_all_end_equal_and_what_comes_home_is_left_out_once(
    servers: list[MariaDBServer], tmp_path: Path, mode: str
) -> None:
    with ring(servers, tmp_path, mode) as three:
        writers = [write_for(each, each.cluster_id, 5) for each in three.clusters]
        for number, target in enumerate((1, 2, 0, 1)):
            time.sleep(0.5)
            # Whoever hears nothing of a COMMIT can't count what it brought.
            three.kill(three.clusters[target], number, lambda statement: statement != "COMMIT")
        for thread in writers:
            thread.join()
        three.wait_until_equal()
        model = last_writes(*three.clusters)
        for cluster in three.clusters:
            assert cluster.rows() == model
        assert three.written() > 100
        three.end()  # which writes counters down
        for each, home in zip(three.directions, (*RING[1:], RING[0]), strict=True):
            assert 0 < returned(each.settings) == came_back(each, home)


@pytest.mark.slow
def test_in_a_ring_transactions_keep_the_mark_of_where_they_were_written(
    servers: list[MariaDBServer], tmp_path: Path
) -> None:
    with ring(servers, tmp_path) as three:
        for number, cluster in enumerate(three.clusters):
            for key in range(5):
                cluster.execute(f"INSERT INTO d.item VALUES ({10 * number + key}, 0)")
        three.wait_until_equal()
        for place, cluster in enumerate(three.clusters):
            assert len(cluster.rows()) == 15
            for _, rows in cluster.committed:
                items = {int(str(row.new[0])) // 10 for row in rows if row.table == "d.item"}
                marks = {row.new[1] for row in rows if row.table != "d.item"}
                if items:
                    assert marks == ({RING[min(items)]} if items != {place} else set())


@pytest.mark.slow
@pytest.mark.beyond_ci
def test_in_a_full_mesh_with_one_channel_all_end_equal(
    servers: list[MariaDBServer], tmp_path: Path
) -> None:
    with mesh(servers, tmp_path) as three:
        writers = [write_for(each, each.cluster_id, 4) for each in three.clusters]
        for number, target in enumerate((1, 2, 0)):
            time.sleep(0.5)
            three.kill(three.clusters[target], number)
        for thread in writers:
            thread.join()
        three.wait_until_equal()
        model = last_writes(*three.clusters)
        for cluster in three.clusters:
            assert cluster.rows() == model
