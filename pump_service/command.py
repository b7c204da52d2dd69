"""Run the pump as a command: settings, log, signals, exit code."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING

from sluice.pump_service.config import Config, ConfigError, load
from sluice.pump_service.listener import client_tls, raise_nofile_limit
from sluice.pump_service.process_limits import LogRateLimit, MallocTrimmer, limit_arenas
from sluice.pump_service.share_holder import ShareHolder
from sluice.tidb.etcd import EtcdClient, Registry
from sluice.tidb.pd import PDClient

if TYPE_CHECKING:
    from sluice.pump_service.server import PumpServer

_log = logging.getLogger(__name__)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_OFFLINE_CODE, _PAUSED_CODE = 10, 11
"""Exit code of a share's pump that is offline."""
_TIMEOUT_S = 3.0
_YOUNG_PER_FULL_COLLECTION = 50
"""Collections of the two younger generations until a full one, which stops all threads.

Beside 8,000 connections that takes 0.1 s and more; by default there were several while such a crowd
came. What only a full one frees are the transports of ended connections, 2 KB each, which asyncio
leaves in a cycle: 50 are some 40,000 of them.
"""
# The event loop and the store's writer alternate; Python's default of 5 ms would delay both.
_THREAD_SWITCH_INTERVAL_S = 0.0005


def main(arguments: Sequence[str]) -> int:
    """Run a pump.

    Returns exit code 0 after a clean end, 2 after a line on stderr if it can't start.
    """
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
    is_holder = config.capture.enabled and config.capture.shares
    return hold_shares(config) if is_holder else _run(config)


def _version() -> str:
    return f"sluice pump {metadata.version('sluice')}, Python {sys.version.split()[0]}"


def hold_shares(config: Config, etcd_urls: str | None = None) -> int:
    """Run pumps of shares until a signal comes."""
    stop = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    tls = client_tls(config.security)
    with (
        PDClient(config.pd_urls, tls=tls, timeout_s=_TIMEOUT_S) as pd,
        EtcdClient(etcd_urls or config.pd_urls, tls=tls, timeout_s=_TIMEOUT_S) as etcd,
    ):
        ShareHolder(
            config,
            etcd,
            Registry(etcd),
            lambda own: _ShareProcess(own, etcd_urls),
            pd.get_gc_safe_point,
        ).run(stop)
    return 0


class _ShareProcess:
    """The process of a share's pump. It pauses when this process ends, however that happens."""

    def __init__(self, config: Config, etcd_urls: str | None) -> None:
        self.node_id = config.node_id
        context = multiprocessing.get_context("spawn")
        self._orders, orders = context.Pipe()
        self._process = context.Process(
            target=_run_share, args=(config, etcd_urls, orders), daemon=True
        )
        self._process.start()
        orders.close()
        self._has_failed = False

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def is_offline(self) -> bool:
        return self._process.exitcode == _OFFLINE_CODE

    def is_paused(self) -> bool:
        return self._process.exitcode == _PAUSED_CODE

    def has_failed(self) -> bool:
        with contextlib.suppress(OSError, EOFError):
            self._has_failed = self._has_failed or (
                self._orders.poll() and bool(self._orders.recv())
            )
        return self._has_failed

    def pause(self) -> None:
        self._order("pause")

    def close(self) -> None:
        self._order("close")

    def join(self, timeout_s: float) -> None:
        self._process.join(timeout_s)
        self._process.kill()

    def _order(self, action: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._orders.send(action)


def _run_share(config: Config, etcd_urls: str | None, orders: Connection) -> None:
    _set_up_log(config)
    sys.exit(_run(config, etcd_urls, orders))


def _obey(pump: PumpServer, orders: Connection) -> None:
    """Carry out what the process that holds the share orders, and pause when that has ended."""
    while True:
        try:
            pump.leave(orders.recv())
        except EOFError:
            pump.leave("pause")
            return


def _run(config: Config, etcd_urls: str | None = None, orders: Connection | None = None) -> int:
    from sluice.pump_service.server import PumpServer
    from sluice.pump_service.serving import StartError

    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_S)
    limit_arenas()
    faulthandler.enable()  # a crash of the interpreter itself leaves all threads' stacks on stderr
    _log.info("open files: at most %d", raise_nofile_limit())
    pump = PumpServer(config, etcd_urls)
    signals: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    # Code and settings stay until the end: each full collection looked through them for 40 ms, in
    # which no call was answered.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _YOUNG_PER_FULL_COLLECTION)
    try:
        pump.start()
    except StartError as error:
        print(f"pump: {error}", file=sys.stderr)
        _log.error("the pump could not start: %s", error)
        return 2
    if orders is not None:
        threading.Thread(target=_obey, args=(pump, orders), daemon=True).start()
    handled, is_told = 0, False
    trimmer = MallocTrimmer()
    while not pump.wait(0.2):  # signal handlers only record: a lock taken in one could deadlock
        trimmer.maybe_trim()
        if orders is not None and not is_told and (pump.capture_status() or {}).get("failure"):
            is_told = True
            with contextlib.suppress(OSError):
                orders.send("failed")
        if len(signals) > handled:
            _log.info("got signal %s", signal.Signals(signals[-1]).name)
            if handled:
                pump.hurry()
            pump.leave("pause")
            if pump.state == "closing":
                pump.hurry()
            handled = len(signals)
    if orders is not None and pump.state == "offline":
        return _OFFLINE_CODE
    return _PAUSED_CODE if orders is not None and pump.state == "paused" and not signals else 0


def _set_up_log(config: Config) -> None:
    handler = logging.FileHandler(config.log_file) if config.log_file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(LogRateLimit())
    logging.basicConfig(level=_LEVELS[config.log_level.lower()], handlers=[handler], force=True)
