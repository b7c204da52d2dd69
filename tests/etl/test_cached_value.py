"""Who doesn't answer keeps nobody waiting, and what he said before is told meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sluice.etl.cached_value import CachedValue, DependencyUnavailable, SourcePoller

LONG_S = 300.0


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_who_never_answers_is_asked_once_and_told_as_he_was_while_the_others_are_asked_anew() -> (
    None
):
    parties, go, asked = SourcePoller(), threading.Event(), []

    def silent() -> str:
        asked.append(1)
        go.wait()
        return "late"

    assert parties.poll({"one": lambda: "early", "other": lambda: 1}, LONG_S).values == {
        "one": "early",
        "other": 1,
    }
    for number in (2, 3):
        parties.poll({"one": silent}, 0.0)
        assert parties.poll({"other": lambda number=number: number}, LONG_S).values == {
            "other": number
        }
    found = parties.poll({"one": silent}, 0.0)
    assert (found.values, len(asked)) == ({"one": "early"}, 1)
    assert found.updated_ms["one"] > 0
    until(lambda: "one" in parties.poll({"one": silent}, 0.0).errors)
    found = parties.poll({"one": silent}, 0.0)
    assert (found.values, found.unknown, len(asked)) == ({"one": "early"}, {"one"}, 1)
    assert found.unresponsive_since_ms["one"] >= found.updated_ms["one"]
    go.set()
    until(lambda: parties.poll({"one": silent}, 0.0).values == {"one": "late"})


def test_who_has_not_answered_yet_is_no_error_and_nothing_is_known_of_him() -> None:
    parties, go = SourcePoller(), threading.Event()
    found = parties.poll({"one": go.wait}, 0.0)
    assert (found.values, found.unknown) == ({}, {"one"})
    with pytest.raises(DependencyUnavailable):
        parties.latest("one", 0.0)
    go.set()
    assert parties.latest("one", LONG_S) is True


def test_since_when_somebody_fails_is_told_until_he_answers_again() -> None:
    parties = SourcePoller()

    def fails() -> None:
        raise OSError("away")

    first = parties.poll({"one": fails}, LONG_S)
    again = parties.poll({"one": fails}, LONG_S)
    assert first.errors == again.errors == {"one": "away"}
    assert first.unresponsive_since_ms == again.unresponsive_since_ms
    assert parties.poll({"one": lambda: 1}, LONG_S).errors == {}


def test_who_cannot_be_asked_for_want_of_another_is_not_blamed() -> None:
    parties = SourcePoller()

    def fails() -> None:
        raise OSError("away")

    found = parties.poll({"one": fails, "other": lambda: parties.latest("one", LONG_S)}, LONG_S)
    assert (found.errors, found.unknown) == ({"one": "away"}, {"one", "other"})


def test_what_is_found_out_in_the_background_is_told_as_it_was_found_last() -> None:
    asked = threading.Semaphore(0)
    answers = iter([1, 2])

    def question() -> int:
        asked.acquire()
        return next(answers)

    background: CachedValue[int] = CachedValue()
    # it takes longer than the first one waits
    assert background.latest(question, 0.0, 0.01) is None
    for answer in (1, 2):
        asked.release()
        until(lambda answer=answer: background.latest(question, 0.0, 0.0) == answer)
    asked.release()  # ends the thread: there is no third answer


def test_a_background_error_is_raised_to_the_next_caller_and_retried_when_it_is_old() -> None:
    asked = []

    def question() -> int:
        asked.append(1)
        raise OSError("away")

    background: CachedValue[int] = CachedValue()
    for _ in range(3):
        with pytest.raises(OSError, match="away"):
            background.latest(question, LONG_S, LONG_S)
    assert len(asked) == 1


def test_a_thread_that_cannot_be_made_hinders_no_later_refresh() -> None:
    starts = iter([RuntimeError("can't start new thread"), None])

    def start(run: Callable[[], None]) -> None:
        if (error := next(starts)) is not None:
            raise error
        threading.Thread(target=run).start()

    background: CachedValue[int] = CachedValue(start)
    with pytest.raises(RuntimeError):
        background.refresh(lambda: 1)
    assert background.latest(lambda: 1, 0.0, LONG_S) == 1
