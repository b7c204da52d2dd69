"""A crew shares out the rows of calls among workers; those that come do what the others can't."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.spark import worker_pool as crew
from sluice.etl.spark.errors import SparkError, SparkUnavailableError
from sluice.etl.spark.worker_pool import NoWorkerAvailable, WorkerPool
from sluice.etl.spark.worker_tuning import TEXTS


class Member:
    """In place of a standing worker, whose contract it keeps: `comes` says whether Spark has a core
    for it.
    """

    def __init__(self, comes: threading.Event | None, work: Any) -> None:
        self.comes = comes
        self.work = work
        self.released = threading.Event()

    def is_ready(self, max_age_s: float) -> bool:
        return self.comes is not None and self.comes.wait(60)

    def call(self, tasks: pa.Table, timeout_s: float) -> list[pa.RecordBatch]:
        [text] = tasks["text"].to_pylist()
        return [pa.record_batch([pa.array([self.work(text)])], schema=TEXTS)]

    def release(self) -> None:
        self.released.set()


def texts(found: list[pa.RecordBatch]) -> list[str]:
    return [text for batch in found for text in batch.column(0).to_pylist()]


def crew_of(*members: Member) -> WorkerPool:
    left = iter(members)
    return WorkerPool(lambda: next(left))  # type: ignore[arg-type, return-value]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A busy machine isn't idleness.

    A crew that is released has no thread in the way of this process's end.
    """
    monkeypatch.setattr(crew, "_IDLE_TIMEOUT_S", 600.0)
    made: list[WorkerPool] = []
    begin = WorkerPool.__init__

    def init(self: WorkerPool, make: Any) -> None:
        begin(self, make)
        made.append(self)

    monkeypatch.setattr(WorkerPool, "__init__", init)
    yield
    monkeypatch.setattr(crew, "_IDLE_TIMEOUT_S", 0.0)
    for each in made:
        each.release()
        each._pool.shutdown()


def table(*rows: str) -> pa.Table:
    return pa.table({"text": list(rows)})


def now() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_rows_that_wait_for_each_other_are_worked_on_side_by_side_and_answered_in_order() -> None:
    both = threading.Barrier(2)

    def work(text: str) -> str:
        both.wait(60)
        return text.upper()

    assert texts(
        crew_of(*(Member(now(), work) for _ in range(4)))(table("a", "b", "c", "d"), 60)
    ) == list("ABCD")


def test_a_member_that_finds_no_core_holds_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_IDLE_TIMEOUT_S", 0.01)
    late = threading.Event()
    first, second = Member(now(), str.upper), Member(late, str.upper)
    calls = crew_of(first, second)
    assert texts(calls(table(*"abcdef"), 60)) == list("ABCDEF")
    late.set()
    for member in (first, second):
        assert member.released.wait(60)


def test_where_nobody_comes_the_call_is_told_at_once_and_so_is_the_next() -> None:
    calls = crew_of(Member(None, str.upper))
    for _ in range(2):
        with pytest.raises(NoWorkerAvailable):
            calls(table("a", "b"), 60)


def test_one_failed_row_fails_its_call_alone() -> None:
    def work(text: str) -> str:
        if text == "bad":
            raise SparkError("it is gone", transient=True)
        return text

    calls = crew_of(*(Member(now(), work) for _ in range(16)))
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(calls, table("a", "b"), 60)
        with pytest.raises(SparkError, match="gone"):
            calls(table("c", "bad", "d"), 60)
        assert texts(good.result()) == ["a", "b"]


class Lost(Member):
    """A member whose server has gone."""

    def is_ready(self, max_age_s: float) -> bool:
        raise SparkUnavailableError("nobody takes connections")


def test_rows_whose_server_is_away_are_told_so_and_arent_tried_as_a_job() -> None:
    calls = crew_of(Lost(None, str.upper))
    for _ in range(2):
        with pytest.raises(SparkUnavailableError, match="nobody takes connections"):
            calls(table("a", "b"), 60)


class Broken(Member):
    """A member that meets an error which isn't Spark's, each time."""

    def is_ready(self, max_age_s: float) -> bool:
        raise OSError(24, "Too many open files")


def test_a_member_that_fails_otherwise_is_the_callers_error_and_no_other_one_begins() -> None:
    made: list[Member] = []

    def make() -> Any:
        made.append(Broken(None, str.upper))
        return made[-1]

    calls = WorkerPool(make)
    for _ in range(3):
        with pytest.raises(OSError, match="Too many open files"):
            calls(table(*"abcdef"), 60)
    assert len(made) == 1


@pytest.mark.parametrize("fails", ["thread", "worker"])
def test_where_no_member_can_begin_the_call_is_told_and_one_can_later(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    members = [Member(now(), str.upper) for _ in range(16)]
    is_short = True

    def make() -> Any:
        if is_short and fails == "worker":
            raise MemoryError
        return members.pop()

    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if is_short and fails == "thread":
            raise RuntimeError("can't start new thread")
        start(thread)

    calls = WorkerPool(make)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", started)
        for _ in range(2):
            with pytest.raises(NoWorkerAvailable):
                calls(table("a", "b"), 60)
    is_short = False
    assert texts(calls(table("a", "b"), 60)) == ["A", "B"]


def test_the_threads_of_a_crew_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_IDLE_TIMEOUT_S", 0.0)
    seen: set[str] = set()

    def work(text: str) -> str:
        seen.add(threading.current_thread().name)
        return text

    calls = WorkerPool(lambda: Member(now(), work))  # type: ignore[arg-type, return-value]
    for _ in range(200):
        calls(table("a", "b"), 60)
    assert len(seen) <= crew._MAX_WORKERS
