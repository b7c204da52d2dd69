"""Landing hears of new transactions from the pumps, and asks those that don't tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.etl.landing._commit_notifier import CommitNotifier

_LONG_S = 60.0


class Pump:
    """Answers what it is told to, or when it is told to."""

    def __init__(self, *answers: bool | None) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []
        self.waiting: Callable[[bool | None], None] = lambda _: None

    def await_newer(self, after_ts: int, wait_ms: int, told: Callable[[bool | None], None]) -> None:
        self.asked.append(after_ts)
        self.waiting = told
        if self._answers:
            told(self._answers.pop(0))


def test_one_pump_with_something_new_is_enough() -> None:
    one, two = Pump(), Pump(True)
    assert CommitNotifier(1).wait([one, two], 7, _LONG_S) is True
    assert (one.asked, two.asked) == ([7], [7])


def test_a_pump_that_waits_is_not_asked_a_second_time() -> None:
    news, one, two = CommitNotifier(1), Pump(), Pump(True, True)
    news.wait([one, two], 7, _LONG_S)
    assert news.wait([one, two], 9, _LONG_S) is True
    assert (one.asked, two.asked) == ([7], [7, 9])
    one.waiting(False)
    assert news.wait([one], 9, 0) is False
    assert one.asked == [7, 9]


@pytest.mark.parametrize("answers", [(None,), (False, None)])
def test_a_pump_that_cannot_tell_is_asked_for_its_bounds(answers: tuple[bool | None, ...]) -> None:
    news, pump = CommitNotifier(1), Pump(*answers)
    for _ in answers[:-1]:
        assert news.wait([pump], 7, 0) is False
    assert news.wait([pump], 7, _LONG_S) is None
    assert news.wait([pump], 7, _LONG_S) is None
    assert len(pump.asked) == len(answers)
    assert news.wait([Pump(True)], 7, _LONG_S) is True, "it isn't there any longer"
