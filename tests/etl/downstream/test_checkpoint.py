"""The checkpoint row: Drainer's format, one writer at a time."""

from __future__ import annotations

import json
import threading

import pytest

from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointError,
    CheckpointMovedError,
    CheckpointTable,
    MySQLSession,
    PendingDdl,
)
from sluice.etl.downstream.sinks import open_sink
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer

DRAINER = (
    '{"consistent":true,"commitTS":470614790085279774,"ts-map":{"primary-ts":1,"secondary-ts":2}'
    ',"schema-version":42}'
)


def test_what_a_drainer_left_is_read_and_kept() -> None:
    checkpoint = Checkpoint.parse(DRAINER, 7)
    assert checkpoint == Checkpoint(
        470614790085279774, 42, True, {"primary-ts": 1, "secondary-ts": 2}
    )
    assert json.loads(checkpoint.to_text()) == json.loads(DRAINER)
    # nothing says that it is consistent
    assert Checkpoint.parse('{"commitTS":5}', 7) == Checkpoint(5, 0, False)
    assert not Checkpoint.parse('{"commitTS":5,"consistent":false}', 7).consistent


def test_a_pending_ddl_is_kept_beside_what_drainer_reads() -> None:
    checkpoint = Checkpoint(5, 6, pending=PendingDdl(1, 6, "abc"))
    assert Checkpoint.parse(checkpoint.to_text(), 7) == checkpoint
    assert set(json.loads(checkpoint.to_text())) == {
        "consistent",
        "commitTS",
        "ts-map",
        "schema-version",
        "sluice",
    }
    assert checkpoint.at(9, 7) == Checkpoint(9, 7)


def test_how_far_a_drainers_changes_may_reach_is_kept_until_the_checkpoint_is_there() -> None:
    left = Checkpoint(5, 6, False, safe_until=9)
    assert left.needs_safe_mode and Checkpoint.parse(left.to_text(), 7) == left
    assert (
        left.to_text() == '{"consistent":false,"commitTS":5,"ts-map":{},"schema-version":6,'
        '"sluice":{"safe-until":9}}'
    )
    assert left.at(8) == Checkpoint(8, 6, False, safe_until=9)
    assert left.at(9) == Checkpoint(9, 6)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"commitTS":"x"}', '{"commitTS":1,"sluice":{"ddl":{"job":1}}}']
)
def test_a_row_that_makes_no_sense_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(CheckpointError, match="cluster 7"):
        Checkpoint.parse(text, 7)


def test_the_table_is_the_originals_and_keeps_64_bit_cluster_ids(session: MySQLSession) -> None:
    table = CheckpointTable(session, 2**64 - 1)
    table.create()
    table.create()
    assert table.load() is None
    table.save(Checkpoint(5), first=True)
    session.commit()
    assert session.query("SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint") == [
        (2**64 - 1, '{"consistent":true,"commitTS":5,"ts-map":{},"schema-version":0}')
    ]
    assert table.load() == Checkpoint(5)


def test_a_checkpoint_that_somebody_else_moved_stops_the_writer(
    mariadb: MariaDBServer, session: MySQLSession
) -> None:
    other = MySQLSession(mariadb.downstream)
    other.connect()
    mine, theirs = CheckpointTable(session, 7), CheckpointTable(other, 7)
    mine.create()
    session.begin()
    mine.lock(None)
    mine.save(Checkpoint(5), first=True)
    session.commit()
    other.begin()
    with pytest.raises(CheckpointMovedError, match="another process"):
        theirs.lock(None)
    with pytest.raises(CheckpointMovedError):
        theirs.save(Checkpoint(6), first=True)
    other.rollback()
    other.begin()
    theirs.lock(Checkpoint(5))
    theirs.save(Checkpoint(6))
    other.commit()
    session.begin()
    with pytest.raises(CheckpointMovedError, match="at 6, 5 expected"):
        mine.lock(Checkpoint(5))
    other.close()


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_commit_that_is_still_under_way_is_waited_for_when_its_connection_is_gone(
    mariadb: MariaDBServer, session: MySQLSession, mode: str
) -> None:
    """The server may be at it when the client has given up: going on from the row as it was would
    look like another process.
    """
    settings = Settings(
        Upstream("unused"), Relay("unused"), mariadb.downstream, apply=Apply(mode, 2)
    )
    table = CheckpointTable(session, 7)
    table.create()
    session.begin()
    table.save(Checkpoint(5), first=True)
    session.commit()
    session.begin()
    table.lock(Checkpoint(5))
    table.save(Checkpoint(6))
    sink = open_sink(settings, 7)
    found: list[Checkpoint | None] = []
    thread = threading.Thread(target=lambda: found.append(sink.recover()))
    thread.start()
    thread.join(0.5)
    session.commit()
    thread.join(60)
    assert found == [Checkpoint(6)]
    sink.run([Step(CommitDetail(0), 8)])
    sink.close()
