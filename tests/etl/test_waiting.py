"""An expected wait is one line now and then, with what is waited for and since when."""

import logging
import re

import pytest

from errors import MachineError
from etl import waiting
from etl.waiting import Waiting
from upstream import PDError


@pytest.fixture
def clock(monkeypatch):
    now = [1_795_262_400.0]
    monkeypatch.setattr(waiting.time, "time", lambda: now[0])
    return now


def test_a_long_wait_is_said_at_once_then_every_half_minute_and_never_with_a_stack_trace(clock, caplog):
    caplog.set_level(logging.INFO)
    wait = Waiting(logging.getLogger("sluice.test"), "landing")
    delays = []
    for _ in range(30):
        try:
            raise PDError("PD is away\nsecond line")
        except PDError as error:
            delays.append(wait.after(error, "at hi=7"))
        clock[0] += delays[-1]
    assert delays[:6] == [0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    assert set(delays[6:]) == {5.0}
    assert 4 <= len(caplog.records) <= 6
    for record in caplog.records:
        assert (record.levelname, record.exc_info) == ("WARNING", None)
        assert re.fullmatch(
            r"landing waits at hi=7, since 12:00:00 UTC \(\d+ s, \d+ attempts\), and tries again: PDError: PD is away"
            " second line",
            record.getMessage(),
        )
    wait.over()
    assert caplog.records[-1].getMessage() == f"landing goes on, after {sum(delays):.0f} s"
    assert caplog.records[-1].levelname == "INFO"


def test_another_kind_of_trouble_is_said_at_once_and_a_new_wait_has_a_new_beginning(clock, caplog):
    wait = Waiting(logging.getLogger("sluice.test"), "applying")
    wait.after(PDError("PD is away"))
    wait.after(MachineError("the disk is full"))
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["PD is away", "the disk is full"]
    wait.over()
    clock[0] += 60
    assert wait.after(PDError("PD is away")) == 0.1
    assert "since 12:01:00 UTC (0 s, 1 attempts)" in caplog.records[-1].getMessage()
