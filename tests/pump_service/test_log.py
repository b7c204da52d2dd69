"""What clients make a pump log is bounded."""

import io
import logging
import time

from sluice.pump_service.process_limits import (
    MAX_LINES,
    MAX_TRACEBACK_LINES,
    PERIOD_S,
    LogRateLimit,
)


def _logger():
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(LogRateLimit())
    logger = logging.Logger("pump")
    logger.addHandler(handler)
    return logger, written


def test_one_line_of_the_code_writes_no_more_than_so_much_in_a_period(monkeypatch):
    logger, written = _logger()
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    for number in range(500):
        logger.warning("client %d is odd", number)
    logger.warning("another line")
    lines = written.getvalue().splitlines()
    assert lines == [
        *(f"client {n} is odd" for n in range(MAX_LINES)),
        "another line",
    ]


def test_the_next_line_says_how_many_were_left_out(monkeypatch):
    logger, written = _logger()
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for number in range(MAX_LINES + 31):
        if number == MAX_LINES + 30:
            clock[0] += PERIOD_S
        logger.warning("client %d is odd", number)
    last = written.getvalue().splitlines()[-1]
    assert last == f"client {MAX_LINES + 30} is odd (30 more of this line were left out)"


def test_tracebacks_count_more():
    logger, written = _logger()
    for _ in range(100):
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("a page failed")
    assert written.getvalue().count("Traceback") == MAX_LINES // MAX_TRACEBACK_LINES
