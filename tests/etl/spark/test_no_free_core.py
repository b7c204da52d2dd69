"""Small calls are mapped in the caller's own process while Spark has no free core."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark import persistent_worker as standing
from sluice.etl.spark import reachability, remote_function, session
from sluice.etl.spark import resilient_function as kept
from sluice.etl.spark.errors import SparkError
from sluice.etl.spark.persistent_worker_task import ServeCalls
from sluice.etl.spark.resilient_function import ResilientFunction
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import TEXTS
from tests.etl.spark.test_kept import ask
from tests.etl.spark.test_standing_worker import work


class Job:
    """In place of a worker's job: it waits for a core until the test gives it one."""

    all: list[Job]

    def __init__(self, spark: Any, serve: ServeCalls) -> None:
        self.serve = serve
        self.began = time.monotonic()
        self.over = threading.Event()
        self.failure = ""
        self.is_cancelled = False
        self.all.append(self)

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    def cancel(self) -> None:
        self.is_cancelled = True

    def get_core(self) -> None:
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def _run(self) -> None:
        try:
            list(self.serve(iter(())))
        finally:
            self.over.set()


def by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Map each text to the name of the thread that maps it."""
    for batch in batches:
        found = pa.array([threading.current_thread().name] * batch.num_rows, pa.string())
        yield pa.record_batch([found], schema=TEXTS)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ResilientFunction]:
    """Give a function on a Spark whose cores are all taken; calls that are jobs give "a job"."""
    Job.all = []
    monkeypatch.setattr(standing, "_WorkerJob", Job)
    monkeypatch.setattr(kept, "_CORE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(reachability, "check_reachable", lambda _: None)
    monkeypatch.setattr(session, "connect", lambda *_: object())
    monkeypatch.setattr(session, "close", lambda _: None)
    answer = pa.record_batch([pa.array(["a job"])], schema=TEXTS)
    monkeypatch.setattr(remote_function, "stream", lambda *_: iter([answer]))
    monkeypatch.setattr(
        remote_function,
        "TaskFrame",
        lambda *_: type("Frame", (), {"of": staticmethod(lambda tasks: tasks)}),
    )
    place = SessionTarget(Spark("sc://127.0.0.1:1"), "busy", tmp_path.as_uri())
    found = ResilientFunction(place, by, (TEXTS, TEXTS))
    found.connect(10)
    yield found
    found.close()


def mapped_by(function: ResilientFunction, *, is_small: bool = True) -> str:
    tasks = pa.table({"text": ["a"]})
    [batch] = function(tasks, 60, alone=True, is_small=is_small)
    return str(batch.column(0)[0].as_py())


HERE = threading.main_thread().name


def test_small_calls_are_mapped_here_until_the_one_job_that_waits_gets_a_core(
    busy: ResilientFunction,
) -> None:
    assert [mapped_by(busy) for _ in range(3)] == [HERE] * 3
    [job] = Job.all
    assert not job.is_cancelled
    job.get_core()
    deadline = time.monotonic() + 60
    while mapped_by(busy) == HERE:
        assert time.monotonic() < deadline
    assert mapped_by(busy) == "worker"
    assert Job.all == [job]


def test_a_worker_that_gave_up_waiting_for_a_call_is_replaced(busy: ResilientFunction) -> None:
    assert mapped_by(busy) == HERE
    Job.all[0].over.set()
    assert mapped_by(busy) == HERE
    assert [job.is_cancelled for job in Job.all] == [True, False]


def test_where_the_worker_found_no_way_here_small_calls_are_jobs(
    busy: ResilientFunction,
) -> None:
    assert mapped_by(busy) == HERE
    Job.all[0].failure = "Connection refused"
    Job.all[0].over.set()
    assert [mapped_by(busy) for _ in range(2)] == ["a job"] * 2
    assert len(Job.all) == 1


def test_a_large_call_is_a_job_and_small_ones_after_it_still_wait_for_none(
    busy: ResilientFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_START_TIMEOUT_S", 0.01)
    assert mapped_by(busy, is_small=False) == "a job"
    assert mapped_by(busy) == HERE


def test_who_closes_takes_back_the_job_that_waits_for_a_core(busy: ResilientFunction) -> None:
    assert mapped_by(busy) == HERE
    busy.close()
    assert all(job.is_cancelled for job in Job.all)


def test_a_call_that_may_have_killed_its_worker_is_never_mapped_here(
    busy: ResilientFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mapped_by(busy) == HERE
    Job.all[0].get_core()
    while mapped_by(busy) == HERE:
        pass
    assert busy._function is not None and busy._function._pool._one is not None
    line = busy._function._pool._one._line
    assert line is not None
    line.close()
    monkeypatch.setattr(standing, "_START_TIMEOUT_S", 0.01)
    with pytest.raises(SparkError, match="gone"):
        mapped_by(busy)
    busy.connect(10)
    assert mapped_by(busy) == "a job"


@pytest.mark.slow
def test_a_small_call_is_done_beside_a_spark_whose_cores_are_taken(
    spark_remote: str, tmp_path: Path
) -> None:
    let_go = tmp_path / "let go"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            (tmp_path / f"held {batch['id'][0].as_py()}").touch()
            while not let_go.exists():
                time.sleep(0.05)
            yield batch

    server = Spark(spark_remote)
    other = session.attach(server, "other", 120)
    function = ResilientFunction(
        SessionTarget(server, "busy", tmp_path.as_uri()), work(), (TEXTS, TEXTS)
    )
    cores = int(other.conf.get("spark.master").removeprefix("local[").removesuffix("]"))
    tasks = other.range(0, 64, 1, 64).mapInArrow(hold, "id long")
    thread = threading.Thread(target=tasks.collect)
    thread.start()
    try:
        function.connect(120)
        deadline = time.monotonic() + 120
        # further tasks wait, so a moment later none has a core to spare
        while len(list(tmp_path.glob("held *"))) < cores:
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
        assert ask(function, "a") == ("a", os.getpid())
    finally:
        let_go.touch()
        thread.join(120)
        function.close()
        session.close(other)
