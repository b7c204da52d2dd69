"""Mode `parallel`: what several sessions write is complete where the checkpoint says, whoever takes
over.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.planning import BatchPayload, InFlightPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.steps import FlushDetail, InFlightDetail, Step
from sluice.etl.downstream import (
    CheckpointMovedError,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    PipeliningState,
)
from sluice.etl.downstream._writer_lock import WriterLock
from sluice.etl.downstream.sinks.mysql import ChangeOrigin
from sluice.etl.downstream.sinks.mysql_parallel import ParallelMySQLSink
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.downstream.sinks.test_sent_ahead import TABLES as FILLED
from tests.etl.downstream.sinks.test_sent_ahead import delete, fill
from tests.etl.downstream.sinks.test_sent_ahead import rows_of as filled_rows
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences


def settings_for(
    server: MariaDBServer, url: str, mode: str = "parallel", workers: int = 3
) -> Settings:
    return Settings(
        Upstream("unused"), Relay(url), server.downstream, apply=Apply(mode, workers, 10_000)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "transactions"),
    [
        pytest.param("shop", "e_end", 1000, marks=pytest.mark.slow),
        ("ddl", "f_end", 40),
        ("types", "end", 7),
    ],
)
def test_recordings_arrive_through_several_sessions(
    mariadb: MariaDBServer, tmp_path: Path, name: str, label: str, transactions: int
) -> None:
    snapshots = {
        s["label"]: s["ts"] for s in json.loads((RECORDINGS / name / "snapshots.json").read_text())
    }
    url = f"file://{tmp_path}/relay"
    last = land(RECORDINGS / name, url, transactions, through=snapshots[label]).last()
    assert last is not None
    settings = settings_for(mariadb, url)
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
    assert differences(RECORDINGS / name, label, mariadb) == []


def parallel_sink(settings: Settings) -> ParallelMySQLSink:
    return ParallelMySQLSink.open(
        settings.downstream, ChangeOrigin.from_upstream(settings.upstream, settings.rules), 7
    )


def landed(tmp_path: Path, seed: int, count: int) -> tuple[History, str, RelayLog]:
    history = History(seed)
    history.grow(count)
    url = f"file://{tmp_path}/relay"
    return history, url, history.land(url, [count // 2])


def steps(url: str, relay: RelayLog) -> list[Step]:
    first = relay.first()
    assert first is not None
    return list(prepare_steps(url, BatchPayload.from_windows([first]), PrepareOptions("groups", 3)))


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("then", ["parallel", "atomic"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_flight_that_was_broken_off_is_finished_by_either_mode(
    mariadb: MariaDBServer, tmp_path: Path, then: str, flushed: bool
) -> None:
    """`flushed`: everything is downstream already, only the checkpoint isn't."""
    history, url, relay = landed(tmp_path, 26, 400)
    fresh(mariadb).close()
    broken = parallel_sink(settings_for(mariadb, url))
    broken.recover()
    begun = [step for step in steps(url, relay) if step.kind != "commit"]
    broken.run([*begun, Step(FlushDetail(), 0)] if flushed else begun[: len(begun) // 2])
    broken.close()
    session = MySQLSession(mariadb.downstream)
    session.connect()
    left = CheckpointTable(session, 7).load()
    session.close()
    assert left is not None
    assert left.in_flight is not None
    assert (left.commit_ts, left.consistent, left.in_flight.until) == (
        relay.first().lo,
        False,
        relay.first().hi,
    )
    settings = settings_for(mariadb, url, then, 2)
    run_apply(settings, until_ts=relay.last().hi, run_seconds=240, prepare=local_preparer(settings))
    with mariadb.connect() as connection:
        for name in TABLES:
            assert rows_of(connection, name) == history.expected(name), name


@pytest.mark.parametrize("ends_sessions", [True, False], ids=["locks by name", "no locks by name"])
def test_who_was_taken_over_commits_nothing_any_more(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_sessions: bool
) -> None:
    """Its sessions are ended.

    On a server where that can't be, the token in the checkpoint row keeps them out.
    """
    if not ends_sessions:
        monkeypatch.setattr(WriterLock, "acquire", lambda *_: None)
        monkeypatch.setattr(WriterLock, "hold", lambda *_: None)
    _, url, relay = landed(tmp_path, 22, 16)
    fresh(mariadb).close()
    older = parallel_sink(settings_for(mariadb, url))
    older.recover()
    in_flight, *rest, _ = steps(url, relay)
    older.run([in_flight])
    newer = parallel_sink(settings_for(mariadb, url))
    newer.recover()
    with pytest.raises(DownstreamError if ends_sessions else CheckpointMovedError):
        older.run([*rest, Step(FlushDetail(), 0)])
    with mariadb.connect() as connection:
        assert all(rows_of(connection, name) == [] for name in TABLES)
    with pytest.raises(CheckpointMovedError, match="another process"):
        older.recover()
    older.close()
    left = newer.recover()
    assert left is not None
    batch = replace(
        BatchPayload.from_windows([relay.first()]), in_flight=InFlightPayload(left.in_flight.until)
    )
    again = prepare_steps(url, batch, PrepareOptions("groups", 3))
    newer.run(again)
    newer.close()


@pytest.mark.parametrize("cut", ["recover", "remember", "close"])
def test_sessions_that_are_cut_on_purpose_are_no_lost_connections(
    mariadb: MariaDBServer, session: MySQLSession, cut: str
) -> None:
    """Else each attempt that is broken off would have statements waited for one by one, for ever
    longer.
    """
    fill(session)
    settings = settings_for(mariadb, "file:///nowhere", workers=2)
    sink = parallel_sink(settings)
    with contextlib.closing(sink):
        sink.recover()
        session.query("UPDATE d.t1 SET v = 7 WHERE id = 3")
        session.query("UPDATE d.t2 SET v = 7 WHERE id = 3")
        steps = [delete(number, [3]) for number in (1, 2)]
        sent = [
            replace(step, detail=replace(step.detail, worker=number))
            for number, step in enumerate(steps)
        ]
        sink.run([Step(InFlightDetail(50), 100), *sent])
        waiting = list(sink._workers)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all(
            worker._session.is_connected for worker in waiting
        ):
            time.sleep(0.01)
        numbers = ", ".join(str(worker._session._connection.thread_id()) for worker in waiting)
        while time.monotonic() < deadline and session.query(
            "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
            f" AND trx_mysql_thread_id IN ({numbers})"
        ) != [(2,)]:
            time.sleep(0.15)  # what InnoDB shows is renewed when nobody has looked for 0.1 s
        assert [worker._session.is_pipelining for worker in waiting] == [True, True]
        {
            "recover": sink.recover,
            "remember": lambda: sink.remember_blocked("refused", ()),
            "close": sink.close,
        }[cut]()
        assert [worker._thread.is_alive() for worker in waiting] == [False, False]
        assert [type(worker._error) for worker in waiting] == [InterruptedError] * 2
        assert sink._session.ahead == PipeliningState()
    session.rollback()
    assert filled_rows(session) == [[(n, 0) for n in range(10)]] * FILLED
