"""The pump as a command: settings, log, signals, exit code."""

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
# The loop's thread and the store's writer take turns; the default of 5 ms would be a long wait for either.
_THREAD_SWITCH_INTERVAL_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Run a pump. Exit code 0 after a clean end, 2 with one line on standard error if it could not start."""
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
    faulthandler.enable()  # if the interpreter itself crashes, what every thread did is on standard error
    _log.info("open files: at most %d", raise_nofile_limit())
    pump = PumpServer(config)
    asked: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, on_signal)
    try:
        pump.start()
    except StartError as error:
        print(f"pump: {error}", file=sys.stderr)
        _log.error("the pump could not start: %s", error)
        return 2
    done = 0
    trimmer = MallocTrimmer()
    while not pump.wait(0.2):  # a signal handler only notes; locks are taken here
        trimmer.now_and_then()
        if len(asked) > done:
            _log.info("got signal %s", signal.Signals(asked[-1]).name)
            if done:
                pump.hurry()
            pump.leave("pause")
            if pump.state == "closing":
                pump.hurry()
            done = len(asked)
    return 0


def _set_up_log(config: Config) -> None:
    handler = logging.FileHandler(config.log_file) if config.log_file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(LogRateLimit())
    logging.basicConfig(level=_LEVELS[config.log_level.lower()], handlers=[handler], force=True)
