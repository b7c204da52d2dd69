"""Run the pump as a command: settings, log, signals, exit code."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from types import FrameType

from sluice.pump_service.config import USAGE, Config, ConfigError, load
from sluice.pump_service.listener import raise_nofile_limit
from sluice.pump_service.log import LogRateLimit
from sluice.pump_service.malloc import MallocTrimmer, limit_arenas

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
