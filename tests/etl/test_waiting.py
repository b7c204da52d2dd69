"""An expected wait is one line now and then, with what is waited for and since when."""

import logging
import re
from types import SimpleNamespace

import pytest

from sluice.errors import MachineError
from sluice.etl import retry as waiting
from sluice.etl.retry import RetryBackoff
from sluice.tidb import PDError


@pytest.fixture
def clock(monkeypatch):
    now = [1_795_262_400.0]
    monkeypatch.setattr(
        waiting,
        "time",
        SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0] - 1_795_000_000),
    )
    return now


def test_a_long_wait_is_said_at_once_then_every_half_minute_and_never_with_a_stack_trace(
    clock, caplog
):
    caplog.set_level(logging.INFO)
    wait = RetryBackoff(logging.getLogger("sluice.test"), "landing")
    delays = []
    for _ in range(60):
        try:
            raise PDError("PD is away\nsecond line")
        except PDError as error:
            delays.append(wait.after(error, "at hi=7"))
        clock[0] += delays[-1]
    waited = [sum(delays[:n]) for n in range(len(delays))]
    assert delays == pytest.approx([min(max(0.1, before / 8), 5.0) for before in waited])
    assert delays[-1] == 5.0
    records = [record for record in caplog.records if record.name == "sluice.test"]
    assert sum(delays) / 40 <= len(records) <= sum(delays) / 30 + 1
    for record in records:
        assert (record.levelname, record.exc_info) == ("WARNING", None)
        assert re.fullmatch(
            r"landing waits at hi=7, since 12:00:00 UTC \(\d+ s, \d+ attempts\), and tries again:"
            r" PDError: PD is away"
            " second line",
            record.getMessage(),
        )
    wait.over()
    assert caplog.records[-1].getMessage() == f"landing goes on, after {sum(delays):.0f} s"
    assert caplog.records[-1].levelname == "INFO"


def test_another_kind_of_trouble_is_said_at_once_and_a_new_wait_has_a_new_beginning(clock, caplog):
    wait = RetryBackoff(logging.getLogger("sluice.test"), "applying")
    wait.after(PDError("PD is away"))
    wait.after(MachineError("the disk is full"))
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "PD is away",
        "the disk is full",
    ]
    wait.over()
    clock[0] += 60
    assert wait.after(PDError("PD is away")) == 0.1
    assert "since 12:01:00 UTC (0 s, 1 attempts)" in caplog.records[-1].getMessage()


def test_a_clock_that_is_set_back_does_not_make_it_try_faster(clock, monkeypatch):
    wait = RetryBackoff(logging.getLogger("sluice.test"), "landing")
    wait.after(PDError("PD is away"))
    clock[0] += 60
    monkeypatch.setattr(waiting.time, "time", lambda: clock[0] - 3_600)
    assert wait.after(PDError("PD is away")) == 5.0
