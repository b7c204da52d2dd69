"""One process that applies a relay log, and may kill itself, lose a connection or stand still at
something it sends downstream.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import pymysql.connections

from sluice.etl.apply import _adaptive_limits as _batch_size
from sluice.etl.apply import run_apply
from sluice.etl.changes.planning import _transaction_cuts as _cuts
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter
from tests.etl.preparing import local_preparer
from tests.judge.shapes import KEY, KEY_VARIABLE


@dataclass(frozen=True)
class Harm:
    """What happens when something is sent for the `at`th time, by all sessions together.

    0: nothing ever. Nothing of that is sent before, or a half, or all: by the remainder of `at`
    divided by three.
    """

    at: int = 0
    how: Literal["killed", "cut", "stopped"] = "killed"
    """The process is killed; or this connection is cut, and it has to find out what became of what
    it sent; or it is stopped, while another one takes over, and goes on as if nothing had been.
    """
    wakes_s: float = 0.0
    """One that is stopped, after so long or when the other one is through."""


@dataclass(frozen=True)
class Plan:
    """What is to be applied: the windows of the relay log at `url` through `until_ts`, to the
    server at `port`.
    """

    url: str
    port: int
    until_ts: int
    mode: str
    max_rows: int
    routes: tuple[Route, ...]
    harm: Harm = Harm()
    filters: Mapping[str, Any] = field(default_factory=dict)
    """`[filter]` of the settings."""
    cut_tables: int = 0
    """Tables that a downstream transaction has at most, however few it takes for cutting to pay; 0:
    as the product.
    """


def run(plan: Plan, answer: Connection) -> None:
    """Answer with "" or the error's text."""
    if plan.harm.at:
        _do(plan.harm)
    if plan.cut_tables:
        _batch_size._BASE_CUT_TABLES, _batch_size._LOCAL_ROUND_TRIP_S, _cuts._DOUBLE_COST_TABLES = (
            plan.cut_tables,
            float("inf"),
            1e-9,
        )
    os.environ[KEY_VARIABLE] = KEY
    settings = Settings(
        Upstream("unused"), Relay(plan.url), Downstream("127.0.0.1", plan.port, "root"),
        apply=Apply(plan.mode, 3, plan.max_rows), routes=Routes(plan.routes),
        filters=parse_filter(plan.filters)[0],
    )  # fmt: skip
    try:
        run_apply(
            settings, until_ts=plan.until_ts, run_seconds=60, prepare=local_preparer(settings)
        )
    except Exception as error:
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}")
    else:
        answer.send("")


def _do(harm: Harm) -> None:
    original = pymysql.connections.Connection._write_bytes  # type: ignore[attr-defined] # pymysql's stubs lack it
    sent = 0

    def write(self: Any, data: bytes) -> None:
        nonlocal sent
        sent += 1
        if sent != harm.at:
            original(self, data)
            return
        before = len(data) * (harm.at % 3) // 2
        original(self, data[:before])
        if harm.how == "cut":
            self._sock.shutdown(socket.SHUT_RDWR)
            return
        os.kill(os.getpid(), signal.SIGKILL if harm.how == "killed" else signal.SIGSTOP)
        original(self, data[before:])

    pymysql.connections.Connection._write_bytes = write  # type: ignore[attr-defined]
