"""Snapshots at the checkpoint: consistent, in nobody's way, and refused where the downstream isn't
what the upstream is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import Filter, NameRule, Route, Routes
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import Checkpoint, CheckpointTable, InFlight, MySQLSession, PendingDdl
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots import consistent_reader as downstream_reader
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader, TableChanged
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.history.snapshots.preflight import downstream_problems, downstream_tables
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import AlignedChunks, Override, RelayLog, TableRepair
from sluice.tidb.schema import Schema
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table

CLUSTER = 7
ACCOUNT = table(11, "account", "id int", "v int", primary="id")
LOG = table(12, "log", "v int")
KNOWN = SourceSchema(500, 3, (Schema(1, ACCOUNT.schema_name),), (ACCOUNT, LOG))


@pytest.fixture
def writer(mariadb: MariaDBServer) -> Iterator[MySQLSession]:
    """The session of who replicates, at the checkpoint 500."""
    session = MySQLSession(mariadb.downstream)
    session.connect()
    checkpoints = CheckpointTable.from_settings(session, mariadb.downstream, CLUSTER)
    checkpoints.create()
    checkpoints.save(Checkpoint(500, 3), first=True)
    schema = ACCOUNT.schema_name
    session.execute(f"CREATE DATABASE {schema}")
    session.execute(f"CREATE TABLE {schema}.account (id INT PRIMARY KEY, v INT)")
    session.execute(f"CREATE TABLE {schema}.log (v INT)")
    session.execute(f"INSERT INTO {schema}.account SELECT seq, seq FROM mysql.seq_1_to_1000")
    session.execute(f"INSERT INTO {schema}.log SELECT seq FROM mysql.seq_1_to_10")
    session.commit()
    yield session
    session.close()


def place(of: Any) -> DownstreamTable:
    return DownstreamTable(of, of.schema_name, of.name)


def save(writer: MySQLSession, mariadb: MariaDBServer, checkpoint: Checkpoint) -> None:
    CheckpointTable.from_settings(writer, mariadb.downstream, CLUSTER).save(checkpoint)
    writer.commit()


def test_what_is_committed_after_the_snapshots_were_opened_is_in_none(
    mariadb: MariaDBServer, writer: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream_reader, "_MIN_PAGE_ROWS", 100)
    monkeypatch.setattr(downstream_reader, "_MAX_PAGE_ROWS", 100)
    with ConsistentReader.open(mariadb.downstream, CLUSTER, 2) as snapshot:
        assert snapshot.checkpoint.commit_ts == 500
        sums = []
        for batch in snapshot.rows(0, place(ACCOUNT)):
            sums.append(sum(batch.column("v").to_pylist()))
            writer.execute(f"UPDATE {ACCOUNT.full_name} SET v = v + 1000000")
            writer.execute(f"DELETE FROM {ACCOUNT.full_name} WHERE id > 900")
            save(writer, mariadb, Checkpoint(501 + len(sums), 3))
        assert (sum(sums), len(sums)) == (1000 * 1001 // 2, 10)
        assert sum(batch.num_rows for batch in snapshot.rows(1, place(ACCOUNT))) == 1000
        assert sum(batch.num_rows for batch in snapshot.rows(1, place(LOG))) == 10


def test_whoever_writes_is_held_up_only_while_the_snapshots_are_opened(
    mariadb: MariaDBServer, writer: MySQLSession
) -> None:
    with ConsistentReader.open(mariadb.downstream, CLUSTER, 2) as snapshot:
        list(snapshot.rows(0, place(ACCOUNT)))
        writer.query("SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
        save(writer, mariadb, Checkpoint(501, 3))
        # A DDL on a table that was read, and on one that wasn't, goes through beside the open
        # snapshots.
        for name in ("account", "log"):
            writer.execute(
                f"ALTER TABLE {ACCOUNT.schema_name}.{name} ADD COLUMN w INT FIRST, ALGORITHM=COPY"
            )
        with pytest.raises(TableChanged, match=r"log .* was changed by a DDL") as caught:
            list(snapshot.rows(1, place(LOG)))
        assert caught.value.transient


def test_a_range_of_keys_and_its_neighbours_hold_every_row_once(
    mariadb: MariaDBServer, writer: MySQLSession
) -> None:
    with ConsistentReader.open(mariadb.downstream, CLUSTER, 1) as snapshot:
        assert snapshot.limits(0, place(ACCOUNT)) == (1, 1000)
        ids = [
            value
            for within in ((None, ["10"]), (["10"], ["11"]), (["11"], ["700"]), (["700"], None))
            for batch in snapshot.rows(0, place(ACCOUNT), within)
            for value in batch.column("id").to_pylist()
        ]
    assert ids == list(range(1, 1001))


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [
        (Checkpoint(500, 3, consistent=False, in_flight=InFlight(510)), "in flight"),
        (Checkpoint(500, 3, pending=PendingDdl(1, 505, "x")), "DDL committed at 505"),
        (Checkpoint(500, 3, consistent=False), "safe mode"),
    ],
)
def test_a_downstream_beyond_its_checkpoint_is_waited_for_and_then_named(
    mariadb: MariaDBServer, writer: MySQLSession, checkpoint: Checkpoint, why: str
) -> None:
    save(writer, mariadb, checkpoint)
    with (
        pytest.raises(SnapshotError, match=why) as caught,
        ConsistentReader.open(mariadb.downstream, CLUSTER, 1, patience_s=0.05),
    ):
        pass
    assert caught.value.transient
    save(writer, mariadb, Checkpoint(511, 3))
    with ConsistentReader.open(mariadb.downstream, CLUSTER, 1, patience_s=0.05) as snapshot:
        assert snapshot.checkpoint.commit_ts == 511


def test_a_downstream_without_a_checkpoint_is_no_replica(mariadb: MariaDBServer) -> None:
    with (
        pytest.raises(SnapshotError, match="has no checkpoint"),
        ConsistentReader.open(mariadb.downstream, CLUSTER, 1),
    ):
        pass


def problems(
    mariadb: MariaDBServer, writer: MySQLSession, folder: Path, **more: Any
) -> tuple[list[str], list[str], RelayLog]:
    settings = replace(
        Settings(Upstream("unused"), Relay(f"file://{folder}/relay"), mariadb.downstream), **more
    )
    relay = RelayLog.open(settings.relay.url)
    _, found = downstream_tables(settings, KNOWN, writer)
    return found, downstream_problems(settings, relay, KNOWN), relay


def test_a_replica_of_everything_is_what_the_upstream_is(
    mariadb: MariaDBServer, writer: MySQLSession, tmp_path: Path
) -> None:
    assert problems(mariadb, writer, tmp_path)[:2] == ([], [])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"filters": Filter(ignored_tables=(NameRule("*", "log", "ignore-table log"),))},
            r"log isn't downstream",
        ),
        ({"filters": Filter(do_schemas=("other",))}, "isn't downstream"),
        (
            {
                "routes": Routes(
                    (Route(ACCOUNT.schema_name, "*", ACCOUNT.schema_name, "account", "all to one"),)
                )
            },
            "merged",
        ),
        (
            {"routes": Routes((Route(ACCOUNT.schema_name, "", "elsewhere", "", "elsewhere"),))},
            "is not on",
        ),
    ],
)
def test_tables_that_are_not_the_upstreams_are_refused_by_name(
    mariadb: MariaDBServer, writer: MySQLSession, tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    found, _, _ = problems(mariadb, writer, tmp_path, **more)
    assert any(re.search(why, problem) for problem in found), found


def test_tables_without_snapshots_or_columns_are_refused_by_name(
    mariadb: MariaDBServer, writer: MySQLSession, tmp_path: Path
) -> None:
    writer.execute(f"ALTER TABLE {LOG.full_name} ENGINE = MyISAM")
    writer.execute(f"ALTER TABLE {ACCOUNT.full_name} DROP COLUMN v")
    found, _, _ = problems(mariadb, writer, tmp_path)
    assert any("log" in problem and "MyISAM" in problem for problem in found), found
    assert any("account" in problem and "no column v" in problem for problem in found), found


def test_decisions_and_missing_rows_are_refused(
    mariadb: MariaDBServer, writer: MySQLSession, tmp_path: Path
) -> None:
    _, found, relay = problems(mariadb, writer, tmp_path, ignored_ts=frozenset({499}))
    assert any("ignore-txn-commit-ts" in problem for problem in found)
    relay.overrides.add(Override(400, "skip"))
    relay.overrides.add(Override(600, "skip"))
    AlignedChunks(relay.storage).begin_repair(TableRepair("gone", "gone", (11,)))
    _, found, _ = problems(mariadb, writer, tmp_path)
    assert len(found) == 1
    # what comes after the checkpoint, and what a job that is over left, matters nothing
    assert "400" in found[0]
