"""One process that applies a relay log, and may kill itself at a statement it sends downstream."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import pymysql.connections

from etl.apply import run_apply
from etl.settings import Apply, Downstream, Relay, Settings, Upstream
from tests.etl.preparing import local_preparer


def run(url: str, port: int, until_ts: int, mode: str, max_rows: int, die_at: int, answer: Connection) -> None:
    """Apply through `until_ts` and answer with "" or the error's text. `die_at`: the number of the statement (all
    sessions together) at which the process kills itself, before it is sent if even, right after if odd; 0: never.
    """
    if die_at:
        _die_at(die_at)
    settings = Settings(
        Upstream("unused"), Relay(url), Downstream("127.0.0.1", port, "root"), apply=Apply(mode, 3, max_rows)
    )
    try:
        run_apply(settings, until_ts=until_ts, run_seconds=60, prepare=local_preparer(settings))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")
    else:
        answer.send("")


def _die_at(number: int) -> None:
    original = pymysql.connections.Connection._execute_command
    sent = 0

    def execute(self: Any, command: int, sql: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == number and number % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, command, sql)
        if sent == number:
            os.kill(os.getpid(), signal.SIGKILL)

    pymysql.connections.Connection._execute_command = execute  # type: ignore[method-assign]
