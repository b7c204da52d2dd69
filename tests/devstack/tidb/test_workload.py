import asyncio
import json
import time

import pyarrow as pa
import pymysql
import pytest

from sluice.devstack.tidb.control import RequestRejected
from sluice.devstack.tidb.server import Cluster, ClusterOptions
from sluice.devstack.tidb.workload import WorkloadError, WorkloadOptions
from sluice.tidb import PDClient, TiKVClient, pb, read_ddl_jobs, read_schema_version
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table
from tests.devstack.cluster_harness import Journal, cluster, etcd, pumps, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """(cluster, journal): no recording, two pumps."""
    journal = Journal()
    with (
        etcd(tmp_path_factory.mktemp("etcd")) as url,
        cluster(url, None, "--cluster-id", "4711") as started,
        pumps(started.url, 4711, journal),
    ):
        yield started, journal


def run(started, **options):
    assert (
        "error" not in (answer := started.post("/workload", **options)) or answer["error"] is None
    ), answer
    return wait_for(
        lambda: (s := started.get("/workload"))["state"] not in ("preparing", "running") and s,
        what="the end",
    )


def committed_in_order(journal):
    """Prewrites of committed transactions, as (commit_ts, message), by commit_ts."""
    prewrites = {
        e.start_ts: pb.binlog.Binlog.FromString(e.payload) for e in journal.binlogs(PREWRITE)
    }
    return sorted(
        ((e.commit_ts, prewrites[e.start_ts]) for e in journal.binlogs(COMMIT)),
        key=lambda pair: pair[0],
    )


def tables_of(started):
    with PDClient(started.url, timeout_s=60) as pd, TiKVClient(pd) as tikv:
        jobs = list(read_ddl_jobs(tikv, pd.tso()))
        assert read_schema_version(tikv, pd.tso()) == max(
            job["binlog"]["SchemaVersion"] for job in jobs
        )
    infos = [(job, job["binlog"]["TableInfo"]) for job in jobs if job["type"] == 3]
    return {
        info["id"]: Table.from_tidb(info, job["schema_id"], job["schema_name"])
        for job, info in infos
    }, jobs


def replayed(journal, tables):
    """Table contents that the binlogs lead to, by (schema, table): {id: row}.

    Every old image must be what was there.
    """
    contents = {(table.schema_name, table.name): {} for table in tables.values()}
    for _, message in committed_in_order(journal):
        value = pb.binlog.PrewriteValue.FromString(message.prewrite_value)
        for mutation in value.mutations:
            table = tables[mutation.table_id]
            rows = contents[table.schema_name, table.name]
            inserted = decode_inserts(
                table, pa.array(mutation.inserted_rows, pa.large_binary())
            ).to_pylist()
            old, new = (
                b.to_pylist()
                for b in decode_updates(table, pa.array(mutation.updated_rows, pa.large_binary()))
            )
            deleted = decode_deletes(
                table, pa.array(mutation.deleted_rows, pa.large_binary())
            ).to_pylist()
            assert len(mutation.sequence) == len(inserted) + len(old) + len(deleted)
            for row in deleted:
                assert rows.pop(row["id"]) == row
            for row in inserted:
                assert row["id"] not in rows
                rows[row["id"]] = row
            for before, after in zip(old, new):
                assert rows[before["id"]] == before
                rows[before["id"]] = after
    return contents


def test_a_workload_is_a_consistent_history_that_a_prober_can_follow(stack):
    started, journal = stack
    status = run(
        started,
        rate=400,
        transactions=300,
        rows=4,
        tables=2,
        row_bytes=50,
        updates=0.5,
        database="a",
    )
    assert (status["state"], status["committed"], status["changes"]) == ("done", 300, 1200)
    tables, jobs = tables_of(started)
    contents = replayed(journal, tables)
    assert set(contents["a", "txn"]) == set(range(status["first"], status["latest"] + 1))
    loads = [contents["a", "load_1"], contents["a", "load_2"]]
    assert all(loads)
    assert sum(1 + row["k"] for rows in loads for row in rows.values()) == 300 * 3
    assert all(len(row["pad"]) == 50 for rows in loads for row in rows.values())
    # When transaction n committed is in the commit log.
    log = {entry[2]: entry for entry in started.get("/commits")}
    values = [
        pb.binlog.PrewriteValue.FromString(m.prewrite_value) for _, m in committed_in_order(journal)
    ]
    mine = [
        v
        for v in values
        if any(tables[mutation.table_id].schema_name == "a" for mutation in v.mutations)
    ]
    version = max(job["binlog"]["SchemaVersion"] for job in jobs if job["schema_name"] == "a")
    assert {v.schema_version for v in mine} == {version}
    assert {ts for ts, m in committed_in_order(journal) if not m.ddl_job_id} == {
        entry[0] for entry in log.values()
    }
    assert all(abs(entry[1] / 1000 - time.time()) < 60 for entry in log.values())


def test_garbage_collection_in_the_middle_takes_nothing_that_can_be_read_afterwards(stack):
    started, journal = stack
    options = {
        "rate": "max",
        "rows": 4,
        "tables": 2,
        "row_bytes": 50,
        "updates": 0.4,
        "deletes": 0.4,
        "database": "gc",
    }
    first = run(started, transactions=1500, **options)["first"]
    with PDClient(started.url, timeout_s=60) as pd:
        assert started.post("/gc", safe_point=(safe_point := pd.tso())) == {
            "safe_point": safe_point
        }
        status = run(started, transactions=1500, **options)
        assert len(started.get("/commits")) == 1500 + 1, (
            "those before but for the newest are forgotten"
        )
        contents = replayed(journal, tables_of(started)[0])
        for _ in range(2):
            for name in ("txn", "load_1", "load_2"):
                found = {row["id"]: row for row in rows_of(started, f"gc.{name}")}
                assert found == contents["gc", name]
            started.post("/gc", safe_point=pd.tso())
    assert set(contents["gc", "txn"]) == set(range(first, status["latest"] + 1))
    assert len(contents["gc", "load_1"]) < 1500, "rows went"


def rows_of(started, table):
    with (
        pymysql.connect(
            host="127.0.0.1", port=started.sql, user="root", cursorclass=pymysql.cursors.DictCursor
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT * FROM {table}")
        return cursor.fetchall()


def test_its_tables_come_from_ddl_jobs_that_reach_the_history_after_their_binlog(stack):
    started, journal = stack
    run(started, rate="max", transactions=1, database="b`ack")
    _, jobs = tables_of(started)
    by_id = {job["id"]: job for job in jobs}
    ddls = [(ts, m) for ts, m in committed_in_order(journal) if m.ddl_job_id]
    mine = [
        (ts, m, by_id[m.ddl_job_id])
        for ts, m in ddls
        if by_id[m.ddl_job_id]["schema_name"] == "b`ack"
    ]
    assert [job["type"] for _, _, job in mine] == [1, 3, 3]
    assert mine[0][1].ddl_query == b"CREATE DATABASE `b``ack`;"
    versions = [job["binlog"]["SchemaVersion"] for _, _, job in mine]
    assert versions == sorted(set(versions))
    for commit_ts, message, job in mine:
        assert message.start_ts < commit_ts < job["binlog"]["FinishedTS"]
        assert message.ddl_schema_state == 5
        assert message.ddl_query.decode() == job["query"] + ";"


def test_a_commit_timestamp_is_newer_than_the_acknowledgement_of_its_prewrite(stack):
    started, journal = stack
    run(started, rate="max", transactions=200, rows=2, database="c")
    with PDClient(started.url, timeout_s=60) as pd:
        assert pd.tso() > max(e.commit_ts for e in journal.binlogs(COMMIT))
    acked = set()
    for event in journal.events:
        if event.tp == PREWRITE and event.kind == "acked":
            acked.add(event.start_ts)
        elif event.kind == "got" and event.tp == COMMIT:
            assert event.start_ts in acked


def test_the_rate_is_kept_and_stop_ends_an_endless_run(stack):
    started, _ = stack
    began = time.monotonic()
    run(started, rate=50, transactions=50, database="d")
    assert 0.9 < time.monotonic() - began < 60
    first = started.post("/workload", rate=100, transactions=None, database="d")["first"]
    assert first == started.get("/workload")["first"] > 50, "numbers go on"
    wait_for(lambda: started.get("/workload")["committed"] > 20, what="twenty transactions")
    assert "is running" in started.post("/workload")["error"]
    started.post("/stop")
    status = wait_for(
        lambda: (s := started.get("/workload"))["state"] == "done" and s, what="the end"
    )
    assert status["committed"] == status["latest"] - status["first"] + 1


def test_a_second_shape_of_the_same_schema_is_refused(stack):
    started, _ = stack
    run(started, rate="max", transactions=1, database="e", tables=1)
    status = run(started, rate="max", transactions=1, database="e", tables=2)
    assert status["state"] == "failed"
    assert "name another database" in status["error"]


class SlowToClose:
    """A pump client that takes everything, and closes when it is told."""

    def __init__(self):
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()

    async def open(self):
        pass

    async def prewrite(self, start_ts, payload):
        pass

    async def finish(self, start_ts, payload):
        pass

    async def close(self):
        self.closing.set()
        await self.may_close.wait()


def test_a_workload_is_over_when_the_next_one_may_begin(monkeypatch):
    async def run_two():
        cluster = Cluster(ClusterOptions(etcd="http://127.0.0.1:1"))
        options = {"rate": "max", "transactions": 1}
        for _ in range(2):
            pump = SlowToClose()
            monkeypatch.setattr(cluster.work, "_make_writer", lambda parameters, pump=pump: pump)
            await cluster.work.start_workload(dict(options))
            await pump.closing.wait()
            assert (await cluster.work.workload_status({}))["state"] == "running"
            with pytest.raises(RequestRejected, match="is running"):
                await cluster.work.start_workload(dict(options))
            pump.may_close.set()
            await cluster.work._task
            status = await cluster.work.workload_status({})
            assert (status["state"], status["committed"]) == ("done", 1)

    asyncio.run(run_two())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"speed": 1}, "unknown option speed; there are: database"),
        ({"rate": "fast"}, "rate is a number"),
        ({"rows": 0}, "rows is between 1 and"),
        ({"rows": 1.5}, "rows is a whole number"),
        ({"updates": 2}, "updates is between"),
        ({"row_bytes": True}, "row_bytes is a number"),
        ({"database": ""}, "database is a name"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(WorkloadError, match=words):
        WorkloadOptions.from_json(options)


def test_options_survive_json():
    options = WorkloadOptions.from_json(
        json.loads('{"rate": "max", "transactions": null, "rows": 7}')
    )
    assert (options.rate, options.transactions, options.rows) == (None, None, 7)


def test_an_accident_takes_every_row_of_a_table_in_one_transaction_and_no_other(stack):
    started, journal = stack
    run(
        started,
        rate=400,
        transactions=50,
        rows=4,
        tables=2,
        row_bytes=20,
        updates=0.5,
        database="accident",
    )
    tables, _ = tables_of(started)
    before = replayed(journal, tables)
    answer = started.post("/accident", schema="accident", table="load_1")
    assert answer["rows"] == len(before["accident", "load_1"]) > 20
    wait_for(
        lambda: any(e.commit_ts == answer["commit_ts"] for e in journal.binlogs(COMMIT)),
        what="the accident",
    )
    assert replayed(journal, tables) == before | {("accident", "load_1"): {}}
    assert started.post("/accident", schema="accident", table="load_1") == {
        "commit_ts": 0,
        "rows": 0,
    }
    assert "no such table" in started.post("/accident", schema="accident", table="nowhere")["error"]
