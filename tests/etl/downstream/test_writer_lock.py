"""The lock of a pipeline that writes downstream."""

from __future__ import annotations

import threading

import pytest

from sluice.etl.downstream import CheckpointTable, MySQLSession
from tests.etl.mariadb_fixture import MariaDBServer


@pytest.mark.slow
def test_a_session_whose_end_the_server_has_not_noticed_is_waited_for_where_that_is_asked(
    mariadb: MariaDBServer,
) -> None:
    settings = mariadb.downstream
    sessions = MySQLSession(settings), MySQLSession(settings)
    for session in sessions:
        session.connect()
    before, after = (
        CheckpointTable.from_settings(session, settings, 7).writer_lock() for session in sessions
    )
    assert before.try_acquire(sessions[0])
    assert not after.try_acquire(sessions[1])
    ending = threading.Timer(1.0, sessions[0].close)
    ending.start()
    try:
        assert after.try_acquire(sessions[1], waits=True)
    finally:
        ending.join()
        sessions[1].close()
