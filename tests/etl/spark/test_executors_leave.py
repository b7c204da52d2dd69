"""Executors leave a standalone cluster: those without work, and those whose worker is to end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from deploy.start.drain import drain
from sluice.devstack.launch.standalone import StandaloneCluster
from sluice.etl.settings import Spark
from sluice.etl.spark import session
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.job import TaskFrame, stream
from sluice.etl.spark.persistent_worker_task import IDLE_TIMEOUT_S
from sluice.etl.spark.remote_function import RemoteFunction
from sluice.etl.spark.worker_tuning import TEXTS
from tests.devstack.cluster_harness import wait_for
from tests.etl.spark.test_standing_worker import work

pytestmark = [pytest.mark.slow, pytest.mark.beyond_ci, pytest.mark.timeout(1200)]
_BY_NEED = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.executor.cores": "1",
}


def cluster(more: dict[str, str]) -> Iterator[StandaloneCluster]:
    home = Path(tempfile.mkdtemp(prefix="sluice-cluster-"))
    found = StandaloneCluster(home, {}, more)
    try:
        found.start(workers=2)
        yield found
    finally:
        found.stop()
        shutil.rmtree(home, ignore_errors=True)


def commands(pid: int) -> list[str]:
    """The command lines of a process's children, and theirs, that haven't ended."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(each.cmdline()))
    return found


@pytest.fixture
def by_need() -> Iterator[StandaloneCluster]:
    yield from cluster(_BY_NEED)


@pytest.fixture
def two_workers() -> Iterator[StandaloneCluster]:
    yield from cluster({})


def test_executors_without_work_go_though_they_hold_shuffled_rows_and_come_back(
    by_need: StandaloneCluster,
) -> None:
    server = Spark(by_need.remote)
    spark = session.attach(server, "by need", 240)
    function = RemoteFunction((spark, server), work(), (TEXTS, TEXTS), ErrorTranslator())

    def ask() -> str:
        tasks = pa.table({"text": ["a"]})
        # the caller stops before the end, so the persistent worker is released each time
        return str(next(iter(function(tasks, 240, alone=True))).column(0)[0].as_py())

    def has_executor() -> bool:
        return any(
            "CoarseGrainedExecutorBackend" in line
            for each in ("worker-0", "worker-1")
            for line in commands(by_need.pids[each])
        )

    assert ask().startswith("a from")
    assert spark.range(0, 1000, 1, 4).repartition(4).count() == 1000
    by_need.wait_for_executors(1)
    began = time.monotonic()
    worker = ask()
    while time.monotonic() < began + 10:  # calls keep the one, and no other
        assert ask() == worker
        by_need.wait_for_executors(1)
        time.sleep(0.5)
    pid = int(worker.rpartition(" ")[2])
    assert psutil.pid_exists(pid) and has_executor()
    wait_for(lambda: not has_executor(), 240 + IDLE_TIMEOUT_S, "its executor goes")
    assert ask() != worker
    by_need.wait_for_executors(1)
    function.release()
    session.close(spark)


def test_a_drained_worker_finishes_its_tasks_and_gets_no_more(
    two_workers: StandaloneCluster, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time
        import uuid

        for batch in batches:
            for text in batch.column(0).to_pylist():
                open(f"{folder}/{text}-{uuid.uuid4().hex}", "w").close()
                time.sleep(10)
                said = pa.array([f"{text} at {os.getcwd()}"])
                yield pa.record_batch([said], schema=TEXTS)

    spark = session.attach(Spark(two_workers.remote), "drained", 240)

    def run(count: int) -> list[str]:
        tasks = pa.table({"text": [f"task{number}" for number in range(count)]})
        frame = TaskFrame(spark, slowly, TEXTS, TEXTS).of(tasks)
        return sorted(
            text for batch in stream(spark, frame, 240) for text in batch.column(0).to_pylist()
        )

    assert len({text.partition(" at ")[2].partition("/work/")[0] for text in run(2)}) == 2
    for path in tmp_path.iterdir():
        path.unlink()
    found: list[str] = []
    job = threading.Thread(target=lambda: found.extend(run(2)))
    job.start()
    deadline = time.monotonic() + 240
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    worker = psutil.Process(two_workers.pids["worker-0"])

    def of_worker() -> list[int]:
        return [worker.pid, *(each.pid for each in worker.children(recursive=True))]

    drain(of_worker)
    assert not any("CoarseGrainedExecutorBackend" in line for line in commands(worker.pid))
    two_workers.kill("worker-0")
    job.join(240)
    assert [text.partition(" at ")[0] for text in found] == ["task0", "task1"]
    assert len(list(tmp_path.iterdir())) == 2, "no task was begun again"
    assert all("/worker-1/" in text for text in run(2))
    session.close(spark)
