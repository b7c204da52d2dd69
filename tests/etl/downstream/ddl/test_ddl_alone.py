"""A DDL statement whose client is gone may still be running on the server: it is never begun a
second time beside itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.downstream import CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.downstream.sinks import mysql as sink_module
from sluice.etl.downstream.sinks import open_sink
from sluice.etl.settings import Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table

OLD = table(11, "item", "id int", "v int", primary="id")
NEW = table(11, "item", "id int", "w int", primary="id")
MODIFY_COLUMN = 12


def running(server: MariaDBServer, text: str) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE %s AND ID <>"
            " CONNECTION_ID()",
            (f"%{text}%",),
        )
        return bool(cursor.fetchone()[0])


def test_a_statement_that_is_still_running_is_waited_for(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(OLD, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(OLD, {"id": 1, "v": 1})
    story.apply()
    after = story._ts
    story.statement(MODIFY_COLUMN, "ALTER TABLE `item` CHANGE COLUMN `v` `w` int", NEW)
    windows = BatchPayload.from_windows(
        window for window in story._relay.windows(after) if window.hi > after
    )
    steps = list(prepare_steps(story._url, windows, PrepareOptions()))
    settings = Settings(Upstream("unused"), Relay(story._url), mariadb.downstream)
    monkeypatch.setattr(sink_module, "_LOCK_TIMEOUT_S", 1)

    first, second = (open_sink(settings, 7) for _ in range(2))
    first.recover()
    ended = threading.Event()
    execute = first._session.execute

    def unheard(statement: str | bytes) -> int:
        """Nobody is told that it ran."""
        count = execute(statement)
        if "CHANGE COLUMN" in str(statement):
            raise DownstreamError(2013, "gone")
        return count

    monkeypatch.setattr(first._session, "execute", unheard)

    def run_first() -> None:
        with contextlib.suppress(DownstreamError):
            first.run(steps)
        ended.set()

    with mariadb.connect() as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM d.item")  # the statement waits for this one
        threading.Thread(target=run_first).start()
        deadline = time.monotonic() + 60
        while not running(mariadb, "CHANGE COLUMN") and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(DownstreamError, match=r"still running.*CHANGE COLUMN") as caught:
            second.recover()
        assert caught.value.transient
    assert ended.wait(60)
    second.recover()
    begun: list[Any] = []
    monkeypatch.setattr(second._ddl, "execute", lambda ddl: begun.append(ddl) or [])
    second.run(steps)
    assert begun == []
    second.close()
    session = MySQLSession(mariadb.downstream)
    session.connect()
    found = CheckpointTable(session, 7).load()
    session.close()
    assert found is not None
    assert (found.commit_ts, found.pending) == (story._ts, None)
    assert story.rows("item", "id, w") == [(1, 1)]
