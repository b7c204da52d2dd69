"""Run the pump as a command: settings, log, memory, signals, exit code."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from types import FrameType

import psutil

from sluice.pump_service.config import USAGE, Config, ConfigError, load
from sluice.pump_service.listener import raise_nofile_limit

_M_ARENA_MAX = -8  # malloc.h
_TRIM_THRESHOLD_BYTES = 150 << 20  # resident set size
_TRIM_INTERVAL_S = 2.0


def limit_arenas() -> None:
    """Limit malloc to two arenas; call it at process start."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class MallocTrimmer:
    """Trim the heap now and then; call `maybe_trim` from a thread that is otherwise idle."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._due = time.monotonic() + _TRIM_INTERVAL_S

    def maybe_trim(self) -> None:
        """Return free heap to the system if the process is large and the interval has passed."""
        if time.monotonic() < self._due:
            return
        if self._process.memory_info().rss > _TRIM_THRESHOLD_BYTES:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self._due = time.monotonic() + _TRIM_INTERVAL_S


PERIOD_S = 10.0
MAX_LINES = 100
"""Limit per log statement and period: enough to see what happens, a few MB an hour at most."""
MAX_TRACEBACK_LINES = 20
"""Lines that a traceback counts as."""


class LogRateLimit(logging.Filter):
    """Filter records of a handler; the first record after a gap reports how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[tuple[str, int], float] = {}
        self._lines: dict[tuple[str, int], int] = {}
        self._dropped: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record.

        The handler's lock is held, or two threads count one line too few.
        """
        place = record.pathname, record.lineno
        now = time.monotonic()
        if now - self._since.get(place, -PERIOD_S) >= PERIOD_S:
            self._since[place] = now
            self._lines[place] = 0
        if self._lines[place] >= MAX_LINES:
            self._dropped[place] = self._dropped.get(place, 0) + 1
            return False
        self._lines[place] += MAX_TRACEBACK_LINES if record.exc_info else 1
        dropped = self._dropped.pop(place, 0)
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped} more of this line were left out)"
            record.args = ()
        return True


_log = logging.getLogger(__name__)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
# The event loop and the store's writer alternate; Python's default of 5 ms would delay both.
_THREAD_SWITCH_INTERVAL_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Run a pump.

    Returns exit code 0 after a clean end, 2 after a line on stderr if it can't start.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if any(argument in ("-h", "-help", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    if any(argument in ("-V", "--V") for argument in arguments):
        print(_version())
        return 0
    try:
        config = load(arguments, os.environ)
        _set_up_log(config)
    except (ConfigError, OSError) as error:
        print(f"pump: {error}", file=sys.stderr)
        return 2
    _log.info("%s starts with %s", _version(), config)
    for warning in config.warnings:
        _log.warning("%s", warning)
    return _run(config)


def _version() -> str:
    return f"sluice pump {metadata.version('sluice')}, Python {sys.version.split()[0]}"


def _run(config: Config) -> int:
    from sluice.pump_service.server import PumpServer, StartError

    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_S)
    limit_arenas()
    faulthandler.enable()  # a crash of the interpreter itself leaves all threads' stacks on stderr
    _log.info("open files: at most %d", raise_nofile_limit())
    pump = PumpServer(config)
    signals: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, on_signal)
    try:
        pump.start()
    except StartError as error:
        print(f"pump: {error}", file=sys.stderr)
        _log.error("the pump could not start: %s", error)
        return 2
    handled = 0
    trimmer = MallocTrimmer()
    while not pump.wait(0.2):  # signal handlers only record: a lock taken in one could deadlock
        trimmer.maybe_trim()
        if len(signals) > handled:
            _log.info("got signal %s", signal.Signals(signals[-1]).name)
            if handled:
                pump.hurry()
            pump.leave("pause")
            if pump.state == "closing":
                pump.hurry()
            handled = len(signals)
    return 0


def _set_up_log(config: Config) -> None:
    handler = logging.FileHandler(config.log_file) if config.log_file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(LogRateLimit())
    logging.basicConfig(level=_LEVELS[config.log_level.lower()], handlers=[handler], force=True)
