"""Past windows into another database: its rows end as a model has them, and the running pipeline's
are not touched.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.etl.verify.reapply import ReplayRangeError, ReplayRequest
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import CREATE, TABLES, History
from tests.etl.verify.reapply.reapplying import (
    Enough,
    pipeline_with,
    reapply,
    small_batches,
    stop_after,
)

AGAIN = {"route": [{"schema-pattern": "rnd", "target-schema": "again"}]}
CLUSTER = 7


def rows_of(server: MariaDBServer, schema: str, name: str) -> list[tuple[Any, ...]]:
    columns = ", ".join(
        f"`{c.name}`+0e0" if c.kind == "float" else f"`{c.name}`" for c in TABLES[name].columns
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {schema}.`{name}`")
        return sorted(cursor.fetchall(), key=repr)


def create(server: MariaDBServer, schema: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in CREATE:
            cursor.execute(statement.replace("rnd", schema))


def database(server: MariaDBServer, **more: Any) -> dict[str, Any]:
    return {"downstream": {"host": "127.0.0.1", "port": server.port, **more}}


class Past:
    """A history, landed, of which the range (since, until] is in the middle.

    `rows`: the model's at until.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        history = History(seed)
        history.grow(60)
        self.since = history.transactions[-1][0]
        history.grow(150)
        self.until = history.transactions[-1][0]
        self.rows = {name: history.expected(name) for name in TABLES}
        history.grow(40)
        sizes = [random.Random(seed).randint(1, 30) for _ in range(3)]
        self.relay = history.land(f"file://{folder}/relay", sizes)
        shutil.copytree(folder / "relay", folder / "copy")
        self.folder = folder

    def restored(self, settings: Settings) -> None:
        """The database of `settings` as a copy of a replica of `since`, checkpoint and all."""
        own = replace(settings, relay=Relay(f"file://{self.folder}/copy"))
        run_apply(own, until_ts=self.since, run_seconds=240, prepare=local_preparer(own))


@pytest.fixture(params=[11, 12])
def past(request: pytest.FixtureRequest, tmp_path: Path) -> Past:
    return Past(tmp_path, request.param)


@pytest.mark.quick_cases("11")
def test_a_restored_database_is_taken_to_any_later_time(mariadb: MariaDBServer, past: Past) -> None:
    pipeline = pipeline_with(past.relay.url, past.folder / "running")
    create(mariadb, "rnd")
    past.restored(replace(pipeline, downstream=mariadb.downstream))
    target = small_batches(database(mariadb), 60)
    with pytest.raises(Enough):
        reapply(pipeline, ReplayRequest(past.since, past.until, target), stop_after(2))
    done = reapply(pipeline, ReplayRequest(past.since, past.until, target))
    assert done.is_done
    for name in TABLES:
        assert rows_of(mariadb, "rnd", name) == past.rows[name], name


@pytest.mark.quick_cases("12")
def test_beside_the_pipeline_on_its_own_server_under_other_names(
    mariadb: MariaDBServer, past: Past
) -> None:
    """Both go on, each from its own checkpoint."""
    pipeline = Settings(Upstream("unused"), Relay(past.relay.url), mariadb.downstream)
    create(mariadb, "rnd")
    create(mariadb, "again")
    again = replace(mariadb.downstream, checkpoint_table="again")
    past.restored(
        replace(
            pipeline, downstream=again, routes=Routes((Route("rnd", "", "again", "", "a rule"),))
        )
    )
    run_apply(pipeline, until_ts=past.since, run_seconds=240, prepare=local_preparer(pipeline))
    before = read_checkpoint(pipeline.target, CLUSTER)
    rows = {name: rows_of(mariadb, "rnd", name) for name in TABLES}
    target = {**small_batches(database(mariadb, **{"checkpoint-table": "again"}), 60), **AGAIN}
    reapply(pipeline, ReplayRequest(past.since, past.until, target))
    assert {name: rows_of(mariadb, "again", name) for name in TABLES} == past.rows
    assert {name: rows_of(mariadb, "rnd", name) for name in TABLES} == rows
    found = read_checkpoint(pipeline.target, CLUSTER)
    assert (found, found and found.process) == (before, before and before.process)
    run_apply(pipeline, until_ts=past.until, run_seconds=240, prepare=local_preparer(pipeline))
    assert {name: rows_of(mariadb, "rnd", name) for name in TABLES} == past.rows


def test_the_pipelines_own_database_is_refused_under_whatever_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    past = Past(tmp_path, 11)
    pipeline = Settings(
        Upstream("unused"), Relay(past.relay.url), replace(mariadb.downstream, host="localhost")
    )
    create(mariadb, "rnd")
    with pytest.raises(ReplayRangeError) as caught:
        reapply(pipeline, ReplayRequest(past.since, past.until, database(mariadb)))
    assert "give the job a checkpoint of its own" in str(caught.value)
    assert "both would write to the databases rnd" in str(caught.value)


@pytest.fixture
def other(tmp_path: Path) -> Past:
    return Past(tmp_path, 12)


def test_a_database_as_of_another_time_is_refused_and_so_is_one_without_the_tables(
    mariadb: MariaDBServer, other: Past
) -> None:
    pipeline = pipeline_with(other.relay.url, other.folder / "running")
    with pytest.raises(
        ReplayRangeError, match=r"rnd\.account isn't on .*: it has to be there as it was at"
    ):
        reapply(pipeline, ReplayRequest(other.since, other.until, database(mariadb)))
    create(mariadb, "rnd")
    other.restored(replace(pipeline, downstream=mariadb.downstream))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE rnd.plain DROP COLUMN v")
    with pytest.raises(
        ReplayRangeError, match=rf"as of {other.since} .*, not as of --since {other.since + 1}"
    ) as caught:
        reapply(pipeline, ReplayRequest(other.since + 1, other.until, database(mariadb)))
    assert "rnd.plain on" in str(caught.value) and "lacks the columns v" in str(caught.value)


def test_a_database_without_a_checkpoint_is_taken_on_trust_and_a_wrong_row_stops_it(
    mariadb: MariaDBServer, other: Past
) -> None:
    pipeline = pipeline_with(other.relay.url, other.folder / "running")
    create(mariadb, "rnd")
    other.restored(replace(pipeline, downstream=mariadb.downstream))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE tidb_binlog")
        cursor.execute("DELETE FROM rnd.plain")
        cursor.execute("DELETE FROM rnd.heap")
    with pytest.raises(Exception, match="did not begin as a copy of the upstream"):
        reapply(pipeline, ReplayRequest(other.since, other.until, database(mariadb)))


def test_two_processes_of_one_job_do_not_write_side_by_side(
    mariadb: MariaDBServer, other: Past
) -> None:
    """The one that was taken over from stops, and nothing is written twice."""
    pipeline = pipeline_with(other.relay.url, other.folder / "running")
    create(mariadb, "rnd")
    other.restored(replace(pipeline, downstream=mariadb.downstream))
    request = ReplayRequest(other.since, other.until, small_batches(database(mariadb), 30))
    begun = iter(range(2))

    def meanwhile(*_: object) -> None:
        if next(begun, 9) == 1:
            row = read_checkpoint(request.settings(pipeline).target, CLUSTER)
            assert row is not None
            with mariadb.connect() as connection, connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE tidb_binlog.checkpoint SET checkPoint = %s",
                    (replace(row, process="another").to_text(),),
                )

    with pytest.raises(Exception, match="another process replicates to the same downstream"):
        reapply(pipeline, request, meanwhile)
