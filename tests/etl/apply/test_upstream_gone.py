"""What is landed goes downstream while nobody of the upstream answers, PD and etcd together, and
after.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table
from tests.tidb.etcd_fixture import EtcdProcess

ITEM = table(11, "item", "id int", "v int", primary="id")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_applying_goes_on_while_the_upstream_is_gone_and_when_it_is_back(
    mariadb: MariaDBServer, tmp_path: Path, etcd_process: EtcdProcess, mode: str
) -> None:
    """PD is asked at etcd's address, and never answers."""
    story = Story(mariadb, tmp_path)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    settings = Settings(
        Upstream(etcd_process.url),
        Relay(story.url),
        mariadb.downstream,
        apply=Apply(mode, 2, 10_000),
    )
    reached = threading.Condition()
    at, retries = [0], []
    stop = threading.Event()

    def seen(report: BatchReport) -> None:
        with reached:
            at[0] = report.hi
            reached.notify_all()

    def apply() -> None:
        done = run_apply(
            settings, run_seconds=240, stop=stop, prepare=local_preparer(settings), on_batch=seen
        )
        retries.append(done.retries)

    def committed(number: int) -> None:
        """A transaction that is downstream before the next step."""
        story.insert(ITEM, {"id": number, "v": number})
        with reached:
            assert reached.wait_for(lambda: at[0] >= story._ts, 120), f"{number} isn't applied"

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        committed(1)
        etcd_process.kill()
        for number in (2, 3, 4):
            committed(number)
        etcd_process.start()
        committed(5)
    finally:
        stop.set()
        thread.join(120)
    assert story.rows("item") == [(n, n) for n in range(1, 6)]
    assert retries == [0]
