"""Who doesn't answer keeps nobody waiting, and what he said before is told meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sluice.etl.operate.polling import DependencyUnavailable, SourcePoller

LONG_S = 300.0


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_never_answers_is_asked_once_and_told_as_he_was_while_the_others_are_asked_anew() -> None:
    parties, go, asked = SourcePoller(), threading.Event(), []

    def silent() -> str:
        asked.append(1)
        go.wait()
        return "late"

    assert parties.ask({"one": lambda: "early", "other": lambda: 1}, LONG_S).said == {"one": "early", "other": 1}
    for number in (2, 3):
        parties.ask({"one": silent}, 0.0)
        assert parties.ask({"other": lambda number=number: number}, LONG_S).said == {"other": number}
    found = parties.ask({"one": silent}, 0.0)
    assert (found.said, len(asked)) == ({"one": "early"}, 1)
    assert found.as_of_ms["one"] > 0
    until(lambda: "one" in parties.ask({"one": silent}, 0.0).errors)
    found = parties.ask({"one": silent}, 0.0)
    assert (found.said, found.missing, len(asked)) == ({"one": "early"}, {"one"}, 1)
    assert found.silent_ms["one"] >= found.as_of_ms["one"]
    go.set()
    until(lambda: parties.ask({"one": silent}, 0.0).said == {"one": "late"})


def test_who_has_not_answered_yet_is_no_error_and_nothing_is_known_of_him() -> None:
    parties, go = SourcePoller(), threading.Event()
    found = parties.ask({"one": go.wait}, 0.0)
    assert (found.said, found.missing) == ({}, {"one"})
    with pytest.raises(DependencyUnavailable):
        parties.latest("one", 0.0)
    go.set()
    assert parties.latest("one", LONG_S) is True


def test_since_when_somebody_fails_is_told_until_he_answers_again() -> None:
    parties = SourcePoller()

    def fails() -> None:
        raise OSError("away")

    first = parties.ask({"one": fails}, LONG_S)
    again = parties.ask({"one": fails}, LONG_S)
    assert first.errors == again.errors == {"one": "away"}
    assert first.silent_ms == again.silent_ms
    assert parties.ask({"one": lambda: 1}, LONG_S).errors == {}


def test_who_cannot_be_asked_for_want_of_another_is_not_blamed() -> None:
    parties = SourcePoller()

    def fails() -> None:
        raise OSError("away")

    found = parties.ask({"one": fails, "other": lambda: parties.latest("one", LONG_S)}, LONG_S)
    assert (found.errors, found.missing) == ({"one": "away"}, {"one", "other"})
