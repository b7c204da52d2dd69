"""A downstream that turns read-only, breaks connections, moves to a server that is behind, or sits
behind a proxy that shares connections.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.bench.far_proxy import FarProxy
from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.grants import grant_statements
from sluice.etl.downstream.sinks import mysql_parallel
from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History

MODES = pytest.mark.parametrize("mode", ["atomic", "parallel"])


class Replicated:
    """A random history in a relay log of several windows, to be applied into an emptied server."""

    def __init__(self, server: MariaDBServer, folder: Path, mode: str) -> None:
        self.server = server
        self.history = History(81)
        self.history.grow(60)
        self.relay: RelayLog = self.history.land(f"file://{folder}/relay", [10])
        self.settings = Settings(
            Upstream("unused"), Relay(self.relay.url), server.downstream, apply=Apply(mode, 2, 1)
        )
        fresh(server).close()

    def apply(
        self,
        downstream: Downstream | None = None,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
    ) -> Any:
        settings = replace(self.settings, downstream=downstream or self.server.downstream)
        last = self.relay.last()
        assert last is not None
        return run_apply(
            settings,
            until_ts=last.hi,
            run_seconds=600,
            prepare=local_preparer(settings),
            on_batch=on_batch,
        )

    def check(self) -> None:
        with self.server.connect() as connection:
            for name in TABLES:
                assert rows_of(connection, name) == self.history.expected(name), name


def say(server: MariaDBServer, *statements: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


class _WhenWaiting(logging.Handler):
    """Calls `then` once applying says that it waits for something."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self._then = then
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "read-only" in text and not self.said:
            self.said.append(text)
            self._then()


@MODES
def test_a_server_that_turns_read_only_is_waited_for_and_replication_goes_on(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    """With exactly the rights that are printed: who has more may write all the same."""
    replicated = Replicated(mariadb, tmp_path, mode)
    grants = grant_statements(
        "failover@'%'", ["rnd"], ("tidb_binlog", "sluice_recycle"), process=True
    )
    say(mariadb, "DROP USER IF EXISTS failover@'%'", "CREATE USER failover@'%'", *grants)
    batches: list[BatchReport] = []

    def seen(report: BatchReport) -> None:
        batches.append(report)
        if len(batches) == 2:
            say(mariadb, "SET GLOBAL read_only = 1")

    waiting = _WhenWaiting(lambda: say(mariadb, "SET GLOBAL read_only = 0"))
    logging.getLogger("sluice.apply").addHandler(waiting)
    try:
        summary = replicated.apply(replace(mariadb.downstream, user="failover"), seen)
    finally:
        logging.getLogger("sluice.apply").removeHandler(waiting)
        say(mariadb, "SET GLOBAL read_only = 0", "DROP USER failover@'%'")
    assert len(waiting.said) == 1
    assert summary.retries >= 1
    replicated.check()


@MODES
def test_after_a_failover_to_a_server_that_is_behind_the_checkpoint_there_decides(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    replicated = Replicated(mariadb, tmp_path, mode)
    behind: dict[str, list[tuple[Any, ...]]] = {}
    row: list[str] = []
    seen: list[BatchReport] = []

    def fail_over(report: BatchReport) -> None:
        seen.append(report)
        if len(seen) == 2:  # what the other server has
            with mariadb.connect() as connection:
                behind.update({name: rows_of(connection, name) for name in TABLES})
            row.append(say(mariadb, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])
        if len(seen) == 4:  # now that is the one that answers
            with mariadb.connect() as connection, connection.cursor() as cursor:
                cursor.execute(
                    "SELECT ID FROM information_schema.PROCESSLIST"
                    " WHERE USER IN ('root', 'sluice') AND ID <> CONNECTION_ID()"
                )
                for (number,) in cursor.fetchall():
                    cursor.execute(f"KILL {number}")
                for name, rows in behind.items():
                    cursor.execute(f"TRUNCATE TABLE rnd.`{name}`")
                    for values in rows:
                        cursor.execute(
                            f"INSERT INTO rnd.`{name}` VALUES ({', '.join(['%s'] * len(values))})",
                            values,
                        )
                cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (row[0],))

    summary = replicated.apply(on_batch=fail_over)
    assert summary.retries >= 1
    assert len(seen) > 6, "what the other server hadn't was written again"
    replicated.check()


@pytest.mark.quick_cases("parallel")
@MODES
def test_a_proxy_that_breaks_connections_at_any_moment_loses_and_doubles_nothing(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    replicated = Replicated(mariadb, tmp_path, mode)
    breaks = iter([25, 70, 110, 151])  # round trips over all connections
    due = [next(breaks)]

    def cut(turn: int) -> bool:
        if turn < due[0]:
            return False
        due[0] = next(breaks, 1 << 60)
        return True

    with FarProxy(mariadb.port, cut=cut) as proxy:
        summary = replicated.apply(replace(mariadb.downstream, port=proxy.port))
        turns = sum(proxy.turns)
    assert turns > 151 and due[0] == 1 << 60
    assert summary.retries >= 3
    replicated.check()


def test_a_proxy_that_shares_connections_among_clients_is_refused_by_name(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement runs in another of two sessions of the server, as a proxy that multiplexes
    does it.
    """
    run, others = MySQLSession._run, [mariadb.connect(), mariadb.connect()]
    ran: list[object] = []

    def shared(self: MySQLSession, statement: str | bytes, args: Any) -> Any:
        connection = self._open()
        ran.append(statement)
        other = others[len(ran) % 2]
        socket, connection._sock = connection._sock, other._sock  # type: ignore[attr-defined]
        file, connection._rfile = connection._rfile, other._rfile  # type: ignore[attr-defined]
        try:
            return run(self, statement, args)
        finally:
            connection._sock, connection._rfile = socket, file  # type: ignore[attr-defined]

    session = MySQLSession(mariadb.downstream)
    session.connect()
    session.close()
    monkeypatch.setattr(MySQLSession, "_run", shared)
    with pytest.raises(
        DownstreamError, match=r"shares connections among clients|can't be set here"
    ) as caught:
        session.connect()
    assert not caught.value.transient
    assert not session.is_connected
    for other in others:
        other.close()


def test_what_waits_for_a_session_is_one_transaction(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a server far away costs few round trips: a commit for each session and flush, however
    many steps.
    """
    replicated = Replicated(mariadb, tmp_path, "parallel")
    replicated.settings = replace(replicated.settings, apply=Apply("parallel", 2, 10_000))
    asked = threading.Event()
    flush, connect = mysql_parallel.ParallelMySQLSink._flush, mysql_parallel._WriterThread._connect
    executed: list[int] = []
    execute = mysql_parallel._WriterThread._execute

    def connect_late(worker: Any) -> None:
        assert asked.wait(240)
        connect(worker)

    def flush_then(sink: Any, written: Any) -> None:
        asked.set()
        flush(sink, written)

    def counted(worker: Any, steps: Any, *more: Any) -> None:
        executed.append(len(steps))
        execute(worker, steps, *more)

    monkeypatch.setattr(mysql_parallel._WriterThread, "_connect", connect_late)
    monkeypatch.setattr(mysql_parallel._WriterThread, "_execute", counted)
    monkeypatch.setattr(mysql_parallel.ParallelMySQLSink, "_flush", flush_then)
    replicated.apply()
    assert max(executed) >= 2, "the first may have begun before the others were there"
    replicated.check()
