"""A small transaction is sent as a whole, and committed when all of it did what it should: what is
downstream then, and what is said of it, is as if each statement had been waited for.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.bench.far_proxy import FarProxy
from sluice.etl.changes import server_errors
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    PipeliningState,
)
from sluice.etl.downstream._pipelining import LoadRejected, PipelinedStatement, execute_pipelined
from sluice.etl.downstream.sinks.mysql import MySQLSink
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Downstream
from tests.etl.downstream.sinks.test_sent_ahead import ONE, TABLES, delete, fill, load, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.examples import examples

CLUSTER = 7
COMMIT = Step(CommitDetail(3), 100, rows=1, changes=1)


@contextlib.contextmanager
def sink_at(downstream: Downstream, *, ahead: bool = True) -> Iterator[MySQLSink]:
    session = MySQLSession(downstream)
    session.ahead.is_refused = not ahead
    sink = MySQLSink(session, CheckpointTable.from_settings(session, downstream, CLUSTER), Filter())
    with contextlib.closing(sink):
        sink.recover()
        sink.run([Step(CommitDetail(3), 50)])  # there is a row from here on
        yield sink


@pytest.fixture
def watching(session: MySQLSession) -> MySQLSession:
    """A session beside the sink's. Tables of which each has the rows 0 to 9."""
    fill(session)
    return session


def reached(session: MySQLSession, downstream: Downstream) -> Checkpoint | None:
    session.query("COMMIT")
    return CheckpointTable.from_settings(session, downstream, CLUSTER).load()


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(ONE, min_size=1, max_size=10))
def test_it_ends_as_if_each_statement_had_been_waited_for(
    mariadb: MariaDBServer, watching: MySQLSession, steps: list[Step]
) -> None:
    CheckpointTable.from_settings(watching, mariadb.downstream, CLUSTER).create()
    found = []
    for ahead in (False, True):
        watching.query("DELETE FROM tidb_binlog.checkpoint")
        fill(watching)
        with sink_at(mariadb.downstream, ahead=ahead) as sink:
            said: object = ""
            try:
                written = sink.run([*steps, COMMIT])
                said = written.rows, written.changes, written.commits
            except ApplyError as error:
                said = str(error)
        found.append((said, reached(watching, mariadb.downstream), rows_of(watching)))
    assert found[0] == found[1]


def test_it_takes_two_round_trips(mariadb: MariaDBServer, watching: MySQLSession) -> None:
    with (
        FarProxy(mariadb.port) as proxy,
        sink_at(replace(mariadb.downstream, port=proxy.port)) as sink,
    ):
        # looks at the tables
        sink.run([load(n, {20: 1}) for n in range(TABLES)] + [replace(COMMIT, commit_ts=60)])
        before = proxy.turns[0]
        sink.run([delete(n, [20]) for n in range(TABLES)] + [COMMIT])
        assert proxy.turns[0] - before <= 4, "TCP may deliver one in two"
    assert reached(watching, mariadb.downstream) == Checkpoint(100, 3)


def test_nothing_is_committed_that_nobody_confirms(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    def held(step: Step, *, begun: bool = False) -> None:
        raise RuntimeError("held")

    with sink_at(mariadb.downstream) as sink:
        with pytest.raises(RuntimeError, match="held"):
            sink.run([load(0, {20: 1}), COMMIT], held)
        assert sink.recover() == Checkpoint(50, 3)
        assert rows_of(watching)[0] == [(n, 0) for n in range(10)]
        sink.run([load(0, {20: 1}), COMMIT])
    watching.query("COMMIT")
    assert rows_of(watching)[0][-1] == (20, 1)


def test_who_was_taken_over_commits_nothing(mariadb: MariaDBServer, watching: MySQLSession) -> None:
    with sink_at(mariadb.downstream) as sink:
        watching.query(
            "UPDATE tidb_binlog.checkpoint SET checkPoint = REPLACE(checkPoint, 's\":\"',"
            " 's\":\"x')"
        )
        watching.query("COMMIT")
        with pytest.raises(CheckpointMovedError, match="another process replicates"):
            sink.run([load(0, {20: 1}), delete(1, [3]), COMMIT])
        watching.query("UPDATE d.t1 SET v = 9 WHERE id = 3")  # nobody holds a lock
        watching.query("COMMIT")
    assert rows_of(watching)[0] == [(n, 0) for n in range(10)]
    assert reached(watching, mariadb.downstream) == Checkpoint(50, 3)


def test_a_row_that_says_the_same_in_other_words_is_the_same(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    with sink_at(mariadb.downstream) as sink:
        watching.query(
            "UPDATE tidb_binlog.checkpoint SET checkPoint = REPLACE(checkPoint, ',', ' , ')"
        )
        watching.query("COMMIT")
        sink.run([load(0, {20: 1}), delete(1, [3]), COMMIT])
    assert rows_of(watching)[0][-1] == (20, 1)
    assert reached(watching, mariadb.downstream) == Checkpoint(100, 3)


def test_a_commit_where_the_checkpoint_is_already_writes_its_rows_once(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    with sink_at(mariadb.downstream) as sink:
        for n in (20, 21):
            sink.run([load(0, {n: 1}), COMMIT])
    assert rows_of(watching)[0][-2:] == [(20, 1), (21, 1)]
    assert reached(watching, mariadb.downstream) == Checkpoint(100, 3)


def test_a_row_that_differs_in_case_alone_is_another_one(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    with sink_at(mariadb.downstream) as sink:
        process = ""
        while process == process.upper():  # digits alone
            sink.recover()
            text = watching.query("SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
            watching.query("COMMIT")
            process = json.loads(text)["sluice"]["process"]
        watching.query(
            "UPDATE tidb_binlog.checkpoint SET checkPoint = %s",
            (text.replace(process, process.upper()),),
        )
        watching.query("COMMIT")
        with pytest.raises(CheckpointMovedError, match="another process replicates"):
            sink.run([load(0, {20: 1}), COMMIT])
    assert rows_of(watching)[0] == [(n, 0) for n in range(10)]


def test_a_row_that_is_gone_is_missed(mariadb: MariaDBServer, watching: MySQLSession) -> None:
    with sink_at(mariadb.downstream) as sink:
        watching.query("DELETE FROM tidb_binlog.checkpoint")
        watching.query("COMMIT")
        with pytest.raises(CheckpointMovedError, match="at no row, 50 expected"):
            sink.run([load(0, {20: 1}), COMMIT])
    assert rows_of(watching)[0] == [(n, 0) for n in range(10)]


def locked(watching: MySQLSession, sink: MySQLSink, act: Callable[[int], None]) -> DownstreamError:
    """What a transaction ends in, whose third statement waits for a row's lock, when `act`, given
    the session's id, is done.
    """
    number = sink._session.query("SELECT CONNECTION_ID()")[0][0]
    sink._session.query("COMMIT")
    watching.query("UPDATE d.t1 SET v = 7 WHERE id = 3")
    found: list[DownstreamError] = []

    def run() -> None:
        try:
            sink.run([load(0, {20: 1}), load(2, {20: 1}), delete(1, [3]), load(3, {20: 1}), COMMIT])
        except DownstreamError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not watching.query(
        "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
    ):
        time.sleep(0.15)  # what InnoDB shows is renewed when nobody has looked for 0.1 s
    act(int(number))
    thread.join(60)
    watching.rollback()
    return found[0]


def test_a_lock_that_isnt_given_is_an_error_that_passes(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    with sink_at(mariadb.downstream) as sink:
        sink._session.query("SET SESSION innodb_lock_wait_timeout = 1")
        error = locked(watching, sink, lambda _: None)
        assert (error.code, error.transient) == (1205, True)
        assert sink.recover() == Checkpoint(50, 3)
    assert rows_of(watching) == [[(n, 0) for n in range(10)]] * TABLES


@pytest.mark.parametrize("what", ["CONNECTION", "QUERY"])
def test_a_session_that_is_killed_leaves_nothing(
    mariadb: MariaDBServer, watching: MySQLSession, what: str
) -> None:
    with sink_at(mariadb.downstream) as sink, mariadb.connect() as admin, admin.cursor() as cursor:
        error = locked(watching, sink, lambda number: cursor.execute(f"KILL {what} {number}"))
        assert error.transient
        assert sink.recover() == Checkpoint(50, 3)
        assert rows_of(watching) == [[(n, 0) for n in range(10)]] * TABLES
        assert sink._session.is_pipelining == (what == "QUERY"), (
            "why it was lost isn't known: for a while one by one"
        )
        sink._session.ahead.lost_at -= 10
        assert sink._session.is_pipelining
        sink.run([load(0, {20: 1}), delete(1, [3]), COMMIT])
    assert reached(watching, mariadb.downstream) == Checkpoint(100, 3)


def test_a_session_that_another_thread_closes_ends_at_once_and_is_no_lost_connection(
    mariadb: MariaDBServer, watching: MySQLSession
) -> None:
    with sink_at(mariadb.downstream) as sink:
        error = locked(watching, sink, lambda _: sink._session.close())
        assert error.transient and error.code != server_errors.LOCK_WAIT_TIMEOUT, (
            "the server's answer isn't waited for"
        )
        assert sink._session.ahead == PipeliningState()
        assert sink.recover() == Checkpoint(50, 3)
    assert rows_of(watching) == [[(n, 0) for n in range(10)]] * TABLES


class Answered(pymysql.connections.Connection):
    """A connection whose server answers with these bytes, then hangs up."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(defer_connect=True)
        self.answer: Any = io.BytesIO(answer)
        self._rfile = self.answer
        self._sock = self
        self._current_timeout = None

    def settimeout(self, _: object) -> None: ...

    def sendall(self, _: bytes) -> None: ...

    def close(self) -> None: ...


PACKET = st.builds(
    lambda number, data: len(data).to_bytes(3, "little") + bytes([number]) + data,
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    st.one_of(
        st.binary(max_size=12),
        st.binary(max_size=12).map(lambda rest: b"\0" + rest),
        st.sampled_from(
            [
                b"\xff\x26\x04#23000twice",
                b"\xff",
                b"\xff\x26",
                b"\xfbfile",
                b"\xfb",
                b"\0\xfe",
                b"\xfe",
            ]
        ),
    ),
)


@settings(max_examples=examples(150))
@given(
    st.lists(PACKET, max_size=4).map(b"".join),
    st.binary(max_size=9),
    st.sampled_from([b"", b"file"]),
)
def test_whatever_a_server_answers_is_an_answer_or_a_connection_that_is_lost(
    packets: bytes, more: bytes, name: bytes
) -> None:
    connection = Answered(packets + more)
    order = PipelinedStatement(b"DELETE", name, b"sluice\n1\n" if name else b"")
    try:
        found = execute_pipelined(connection, [order, PipelinedStatement(b"DELETE")])
    except (pymysql.err.MySQLError, LoadRejected):
        assert not connection.open
        return
    assert len(found) == 2
    assert connection.open
    for answer in found:
        assert answer.error is not None or (answer.affected >= 0 and 0 <= answer.warnings < 2**16)


def test_answers_say_how_many_rows_and_warnings_there_were_and_what_was_wrong() -> None:
    ok = [b"\0\x05\0\x02\0\x03\0", b"\0\xfc\x01\x02\0\0\0\0\0(tail", b"\xff\x26\x04#23000twice"]
    connection = Answered(b"".join(len(data).to_bytes(3, "little") + b"\1" + data for data in ok))
    first, second, third = execute_pipelined(connection, [PipelinedStatement(b"x")] * 3)
    assert (first.affected, first.warnings) == (5, 3)
    assert (second.affected, second.warnings, second.message) == (513, 0, b"(tail")
    assert third.error is not None and third.error.args == (1062, "twice")


def test_an_answer_that_cannot_be_decoded_closes_the_connection() -> None:
    column = b"\x03def\0\0\0\1a\1a\x0c\x21\0\xff\0\0\0\xfd\0\0\0\0\0"
    packets = [b"\1", column, b"\xfe\0\0\2\0", b"\1\xff", b"\xfe\0\0\2\0", b"\0\0\0\2\0\0\0"]
    connection = Answered(
        b"".join(
            len(data).to_bytes(3, "little") + bytes([n]) + data for n, data in enumerate(packets, 1)
        )
    )
    with pytest.raises(UnicodeDecodeError):
        execute_pipelined(
            connection, [PipelinedStatement(b"SELECT a", asks=True), PipelinedStatement(b"COMMIT")]
        )
    assert not connection.open
    with pytest.raises(pymysql.err.MySQLError, match="closed"):
        execute_pipelined(connection, [PipelinedStatement(b"COMMIT")])


def test_the_more_often_connections_are_lost_the_more_seldom_it_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(
        "sluice.etl.downstream._statements_ahead.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    ahead = PipeliningState()
    pauses = []
    for _ in range(8):
        assert ahead.allowed
        ahead.lost()
        began = clock[0]
        while not ahead.allowed:
            clock[0] += 1
        pauses.append(clock[0] - began)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    ahead.on_answered()
    ahead.lost()
    assert ahead.pause_s == 600
    clock[0] += 661
    ahead.on_answered()
    ahead.lost()
    assert ahead.pause_s == 10
    ahead.is_refused = True
    clock[0] += 10_000
    assert not ahead.allowed
