"""While applying goes on, sessions of others that write to replicated databases are named.

Its own never are.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ownership import OtherSession, sessions_writing
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.measures import CounterStore
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import ITEM, Story, with_item


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return with_item(mariadb, tmp_path)


@contextlib.contextmanager
def running(story: Story, statement: str, database: str | None = None) -> Iterator[int]:
    """A session of another program that runs a statement until it is killed; its number."""
    other = story.server.connect(database=database)

    def run() -> None:
        with contextlib.suppress(pymysql.err.Error), other.cursor() as cursor:
            cursor.execute(statement)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    number = int(other.thread_id())
    with story.server.connect() as connection, connection.cursor() as cursor:
        while not cursor.execute(
            "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s AND INFO <> ''", (number,)
        ):
            assert thread.is_alive()
        try:
            yield number
        finally:
            with contextlib.suppress(pymysql.err.Error):
                cursor.execute(f"KILL {number}")
            thread.join(30)


def noting(seen: set[int]) -> Callable[..., Iterator[OtherSession]]:
    """The search, which notes all that write, wherever that is."""

    def found(
        session: MySQLSession, is_replicated: Callable[[str], bool]
    ) -> Iterator[OtherSession]:
        seen.update(one.number for one in sessions_writing(session, lambda name: True))
        return sessions_writing(session, is_replicated)

    return found


def until(is_so: Callable[[], object], ended: threading.Event) -> None:
    while not is_so():
        assert not ended.wait(0.02)


@pytest.mark.parametrize("mode", ["exact", "parallel"])
def test_a_session_that_writes_beside_a_running_pipeline_is_named_once_and_its_own_are_not(
    story: Story,
    etcd_url: str,
    mode: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.etl.apply._other_sessions._CHECK_INTERVAL_S", 0.01)
    caplog.set_level(logging.WARNING, "sluice.apply")
    seen: set[int] = set()
    monkeypatch.setattr("sluice.etl.apply._other_sessions.sessions_writing", noting(seen))
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d_restored")
        cursor.execute("CREATE TABLE d_restored.item (id INT, v INT)")
    settings = Settings(
        Upstream(etcd_url), Relay(story.url), story.server.downstream, apply=Apply(mode)
    )
    run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=local_preparer(settings))
    stop, ended = threading.Event(), threading.Event()

    def run() -> None:
        try:
            run_apply(settings, stop=stop, run_seconds=240, prepare=local_preparer(settings))
        finally:
            ended.set()

    def named() -> list[str]:
        return [
            one.getMessage()
            for one in caplog.records
            if "another writer is at work" in one.getMessage()
        ]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for number in range(2, 40):
            story.insert(ITEM, {"id": number, "v": number})
        until(lambda: len(story.rows("item")) == 39, ended)
        assert named() == []
        with running(story, "INSERT INTO d_restored.item SELECT 7, SLEEP(60)") as number:
            until(lambda: number in seen, ended)  # in a place that is not replicated
        with running(story, "UPDATE d.item SET v = 7 WHERE id = 1 AND SLEEP(60) = 0") as number:
            until(named, ended)
            (said,) = named()
            assert (
                f"session {number} of root from" in said and "runs: UPDATE d.item SET v = 7" in said
            )
    finally:
        stop.set()
        thread.join(60)
    assert len(named()) == 1
    counts = CounterStore(RelayLog.open(story.url), settings.downstream_name).totals().apply.counts
    assert counts["other_writers"] == 1


@pytest.mark.parametrize(
    ("statement", "database", "found"),
    [
        ("INSERT INTO item SELECT 7, SLEEP(60)", "d", "d"),
        ("INSERT INTO `my.db`.`a b` SELECT 1, SLEEP(60)", "d", "my.db"),
        ("REPLACE INTO  `my.db` . t SELECT 1, SLEEP(60)", None, "my.db"),
        ("DELETE FROM d.item WHERE SLEEP(60) AND v <> 1.5", "mysql", "d"),
        ("UPDATE item SET v = 'into x.y' WHERE SLEEP(60)", "d", "d"),
        ("SELECT SLEEP(60) FROM d.item", None, None),
    ],
)
def test_what_a_session_writes_to_is_read_from_its_statement(
    story: Story, statement: str, database: str | None, found: str | None
) -> None:
    story.apply()
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS `my.db`")
        for name in ("`a b`", "t"):
            cursor.execute(f"CREATE TABLE IF NOT EXISTS `my.db`.{name} (id INT, v INT)")
    asked: list[str] = []
    session = MySQLSession(story.server.downstream)
    session.connect()
    with running(story, statement, database) as number, contextlib.closing(session):
        writing = [
            one.number for one in sessions_writing(session, lambda name: asked.append(name) or True)
        ]
    assert (writing, asked) == (([number], [found]) if found else ([], []))
