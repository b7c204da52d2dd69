"""A crew shares out the rows of calls among workers; those that come do what the others can't."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from etl.spark import crew
from etl.spark.crew import Crew, NobodyCameError
from etl.spark.errors import SparkError, SparkUnavailableError
from etl.spark.worker import TEXTS


class Member:
    """In place of a standing worker, whose contract it keeps: `comes` says whether Spark has a core for it."""

    def __init__(self, comes: threading.Event | None, work: Any) -> None:
        self.comes = comes
        self.work = work
        self.released = threading.Event()

    def is_ready(self, stands_s: float) -> bool:
        return self.comes is not None and self.comes.wait(60)

    def call(self, tasks: pa.Table, timeout_s: float) -> list[pa.RecordBatch]:
        [text] = tasks["text"].to_pylist()
        return [pa.record_batch([pa.array([self.work(text)])], schema=TEXTS)]

    def release(self) -> None:
        self.released.set()


def texts(found: list[pa.RecordBatch]) -> list[str]:
    return [text for batch in found for text in batch.column(0).to_pylist()]


def crew_of(*members: Member) -> Crew:
    left = iter(members)
    return Crew(lambda: next(left))  # type: ignore[arg-type, return-value]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine isn't idleness."""
    monkeypatch.setattr(crew, "_STAYS_S", 600.0)


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

    assert texts(crew_of(*(Member(now(), work) for _ in range(4)))(table("a", "b", "c", "d"), 60)) == list("ABCD")


def test_a_member_that_finds_no_core_holds_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_STAYS_S", 0.01)
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
        with pytest.raises(NobodyCameError):
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

    def is_ready(self, stands_s: float) -> bool:
        raise SparkUnavailableError("nobody takes connections")


def test_rows_whose_server_is_away_are_told_so_and_arent_tried_as_a_job() -> None:
    calls = crew_of(Lost(None, str.upper))
    for _ in range(2):
        with pytest.raises(SparkUnavailableError, match="nobody takes connections"):
            calls(table("a", "b"), 60)
