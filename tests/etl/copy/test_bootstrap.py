"""What a bootstrap refuses, what it leaves behind when it stops, and where rows arrive."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.cli._copy_progress import copy_text
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.bootstrap_run import BootstrapSummary, CopyProgressCounts
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.errors import CopyError, DumpError
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.worker import make_loads
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, PAUSE, PAUSED, Job, JobCounts, Jobs, Runner
from sluice.tidb.schema import Index, Schema, Table
from tests.etl.copy.dump_writer import POSITION, Way, content, write
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table

ITEM = table(11, "item", "id int", "v int", primary="id")
LOG = table(12, "log", "v int")
BY_V = Index(2, "by_v", (("v", 1, -1),))
COLUMNS = [("id", "int", False), ("v", "int", False)]


def settings_of(server: MariaDBServer, folder: Path, routes: Routes | None = None) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(f"file://{folder}/relay"),
        server.downstream,
        routes=routes or Routes(),
    )


def items(rows: list[tuple[bytes, bytes]]) -> bytes:
    return content("item", COLUMNS, rows, Way())


def bootstrap(
    settings: Settings, url: str, *tables: Table, into: tuple[str, ...] = ()
) -> BootstrapSummary:
    source = DumplingFolder.open(url)
    schemas = tuple(
        {
            t.schema_id: Schema(t.schema_id, t.schema_name, "utf8mb4", "utf8mb4_bin")
            for t in tables
        }.values()
    )
    definitions = SourceSchema(source.position, 5, schemas, tables)
    made = BootstrapPlanner(settings, source, definitions, 7)
    return made.run(lambda chunk, one: make_loads(source.spec(), chunk, one), into)


def ask(server: MariaDBServer, query: str) -> list[Any]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_a_damaged_file_stops_with_its_place_and_nothing_is_half_done(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings, dump = settings_of(mariadb, tmp_path), tmp_path / "dump"
    good, bad = items([(b"1", b"1"), (b"2", b"2")]), items([(b"3", b"3"), (b"4", b"4")])
    url = write(dump, {"d.item.0.sql": good, "d.item.1.sql": bad[:-2]})
    with pytest.raises(
        DumpError, match=rf"d\.item\.1\.sql, byte {len(bad) - 2}: the file ends in the middle"
    ):
        bootstrap(settings, url, ITEM)
    assert {row for (row,) in ask(mariadb, "SELECT id FROM d.item")} in ({1, 2}, set())
    assert ask(mariadb, "SELECT * FROM tidb_binlog.checkpoint") == []
    write(dump, {"d.item.1.sql": bad})
    assert bootstrap(settings, url, ITEM).rows_there == 4
    assert ask(mariadb, "SELECT id FROM d.item ORDER BY id") == [(1,), (2,), (3,), (4,)]
    ((text,),) = ask(mariadb, "SELECT checkPoint FROM tidb_binlog.checkpoint")
    assert json.loads(text) == {
        "consistent": True,
        "commitTS": POSITION,
        "ts-map": {},
        "schema-version": 5,
    }


def test_text_that_is_no_utf8_arrives_in_columns_of_bytes(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    note = replace(
        table(11, "note", "id int", "v varchar(20)", "w text", primary="id"), indexes=(BY_V,)
    )
    columns = [("id", "int", False), ("v", "text", False), ("w", "text", False)]
    rows = [
        (b"1", "é".encode(), b"x"),
        (b"2", b"a\xe9", b"y"),
        (b"3", b"\xff'\\", None),
        (b"4", b"z", b"\xfe"),
    ]
    url = write(
        tmp_path / "dump",
        {
            f"d.note.{n}.sql": content("note", columns, rows[n : n + 2], Way())
            for n in range(0, len(rows), 2)
        },
    )
    summary = bootstrap(settings_of(mariadb, tmp_path), url, note)
    assert all(
        any(f"d.note: the column {name} holds bytes" in w for w in summary.warnings)
        for name in "vw"
    )
    found = ask(mariadb, "SELECT CAST(id AS CHAR), HEX(v), HEX(w) FROM d.note ORDER BY id")
    assert found == [
        (i.decode(), v.hex().upper(), None if w is None else w.hex().upper()) for i, v, w in rows
    ]
    assert ask(
        mariadb, "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE INDEX_NAME = 'by_v'"
    ) == [("v",)]


def test_keys_that_are_the_same_downstream_stop(mariadb: MariaDBServer, tmp_path: Path) -> None:
    url = write(tmp_path / "dump", {"d.item.0.sql": items([(b"1", b"1"), (b"1", b"2")])})
    with pytest.raises(CopyError, match=r"1 of 2 rows have a key that another row has"):
        bootstrap(settings_of(mariadb, tmp_path), url, ITEM)
    assert ask(mariadb, "SELECT * FROM d.item") == []


def test_rows_that_somebody_else_wrote_stop_it_before_the_checkpoint(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings = settings_of(mariadb, tmp_path)
    url = write(
        tmp_path / "dump", {"d.log.0.sql": content("log", [("v", "int", False)], [(b"1",)], Way())}
    )
    source = DumplingFolder.open(url)
    made = BootstrapPlanner(
        settings, source, SourceSchema(POSITION, 5, (Schema(LOG.schema_id, "d"),), (LOG,)), 7
    )

    def make(chunk: Any, one: Table) -> Any:
        yield from make_loads(source.spec(), chunk, one)
        ask(mariadb, "INSERT INTO d.log VALUES (7)")

    with pytest.raises(
        CopyError, match=r"d\.log .* has 2 rows, 1 were copied: another program wrote there"
    ):
        made.run(make)
    assert ask(mariadb, "SELECT * FROM tidb_binlog.checkpoint") == []


def test_a_target_that_is_not_empty_is_refused_unless_it_is_named(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    ask(mariadb, "CREATE DATABASE d")
    ask(mariadb, "CREATE TABLE d.other (id INT)")
    settings = settings_of(mariadb, tmp_path)
    url = write(tmp_path / "dump", {"d.item.0.sql": items([(b"1", b"1")])})
    with pytest.raises(CopyError, match=r"isn't empty: d\.other.*DROP DATABASE `d`\."):
        bootstrap(settings, url, ITEM)
    ask(mariadb, "CREATE TABLE d.item (id INT)")
    with pytest.raises(CopyError, match=r"isn't empty: d\.item.*EXISTS `d`\.`item`\."):
        bootstrap(settings, url, ITEM, into=("d",))
    ask(mariadb, "DROP TABLE d.item")
    assert bootstrap(settings, url, ITEM, into=("d",)).rows == 1


def test_a_replica_is_refused_and_so_is_a_relay_log_of_another_time(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings = settings_of(mariadb, tmp_path)
    url = write(tmp_path / "dump", {"d.item.0.sql": items([(b"1", b"1")])})
    bootstrap(settings, url, ITEM)
    ask(mariadb, "DROP DATABASE d")
    with pytest.raises(CopyError, match=r"is done: its result lies in jobs/bootstrap/result\.json"):
        bootstrap(settings, url, ITEM)
    other = settings_of(mariadb, tmp_path / "other")
    window = WindowRecord(POSITION + 5, POSITION + 9, 7, "test", 0, 0, 0, 1, (), {}, (), ())
    RelayLog.open(other.relay.url).commit(window)
    with pytest.raises(CopyError) as caught:
        bootstrap(other, url, ITEM)
    assert "has a checkpoint of this cluster already" in str(caught.value)
    assert f"holds the windows from {POSITION + 5} to {POSITION + 9}" in str(caught.value)


def test_the_statements_that_a_refusal_names_make_the_next_copy_possible(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    url = write(tmp_path / "dump", {"d.item.0.sql": items([(b"1", b"1")])})
    bootstrap(settings_of(mariadb, tmp_path), url, ITEM)
    again = settings_of(mariadb, tmp_path / "again")
    with pytest.raises(CopyError) as caught:
        bootstrap(again, url, ITEM)
    named = re.search(r"To start over, empty it: (.*)", str(caught.value))
    assert named is not None
    for statement in named[1].split("; "):
        ask(mariadb, statement)
    assert bootstrap(again, url, ITEM).rows == 1


def test_a_bootstrap_of_something_else_is_told_whose_place_it_would_take(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings = settings_of(mariadb, tmp_path)
    bad = write(tmp_path / "bad", {"d.item.0.sql": items([(b"1", b"1")])[:-2]})
    with pytest.raises(DumpError):
        bootstrap(settings, bad, ITEM)
    other = write(tmp_path / "other", {"d.item.0.sql": items([(b"1", b"1")])})
    with pytest.raises(
        CopyError, match=r"the job bootstrap of .* was begun for something else, .*/bad"
    ):
        bootstrap(settings, other, ITEM)


def test_two_processes_at_once_are_kept_apart(
    mariadb: MariaDBServer, tmp_path: Path, session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.etl.copy.copy_run.LOCK_TIMEOUT_S", 0.2)
    settings = settings_of(mariadb, tmp_path)
    url = write(tmp_path / "dump", {"d.item.0.sql": items([(b"1", b"1")])})
    source = DumplingFolder.open(url)
    made = BootstrapPlanner(
        settings, source, SourceSchema(POSITION, 5, (Schema(ITEM.schema_id, "d"),), (ITEM,)), 7
    )
    checkpoint = CheckpointTable.from_settings(session, settings.downstream, 7)
    assert checkpoint.writer_lock().try_acquire(session)
    with pytest.raises(
        CopyError, match=r"another process writes to .* as this pipeline, in connection \d+"
    ):
        made.run(lambda chunk, one: make_loads(source.spec(), chunk, one))


def test_tables_with_the_same_keys_arrive_in_one_by_their_names(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    routes = Routes((Route("d", "item*", "all", "items", "a rule", "origin"),))
    second = table(13, "item2", "id int", "v int", primary="id")
    files = {
        "d.item.0.sql": items([(b"1", b"1")]),
        "d.item2.0.sql": content("item2", COLUMNS, [(b"1", b"2"), (b"3", b"3")], Way()),
    }
    bootstrap(settings_of(mariadb, tmp_path, routes), write(tmp_path / "d", files), ITEM, second)
    assert ask(mariadb, "SELECT * FROM `all`.items ORDER BY id, origin") == [
        (1, 1, "d.item"), (1, 2, "d.item2"), (3, 3, "d.item2"),
    ]  # fmt: skip


def test_tables_that_routes_merge_arrive_in_one(mariadb: MariaDBServer, tmp_path: Path) -> None:
    routes = Routes((Route("d", "item*", "all", "items", "a rule"),))
    second = table(13, "item2", "id int", "v int", primary="id")
    files = {
        "d.item.0.sql": items([(b"1", b"1")]),
        "d.item2.0.sql": content("item2", COLUMNS, [(b"2", b"2"), (b"3", b"3")], Way()),
    }
    summary = bootstrap(
        settings_of(mariadb, tmp_path, routes), write(tmp_path / "dump", files), ITEM, second
    )
    assert summary.rows_there == 3
    assert ask(mariadb, "SELECT id, v FROM `all`.items ORDER BY id") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.slow
def test_a_copy_that_is_broken_off_ends_while_rows_are_still_waited_for(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    first, second = items([(b"1", b"1")]), items([(b"2", b"2")])
    url = write(tmp_path / "dump", {"d.item.0.sql": first, "d.item.1.sql": second})
    source, settings = DumplingFolder.open(url), settings_of(mariadb, tmp_path)
    definitions = SourceSchema(source.position, 5, (Schema(ITEM.schema_id, "d"),), (ITEM,))
    come = threading.Event()

    def slow(chunk: SourceChunk, one: Table) -> Iterator[pa.RecordBatch]:
        if chunk.number == 1:
            come.wait()
        return make_loads(source.spec(), chunk, one)

    def interrupt(progress: CopyProgressCounts) -> None:
        if progress.rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BootstrapPlanner(settings, source, definitions, 7).run(slow, on_progress=interrupt)
    come.set()
    for thread in threading.enumerate():
        if thread.name.startswith("copy-"):
            thread.join()
    assert ask(mariadb, "SELECT id FROM d.item") == [(1,)]
    assert bootstrap(settings, url, ITEM).rows_there == 2
    assert ask(mariadb, "SELECT id FROM d.item ORDER BY id") == [(1,), (2,)]


def three_chunks(
    mariadb: MariaDBServer, folder: Path, kind: type[DumplingFolder] = DumplingFolder
) -> tuple[Settings, BootstrapPlanner, MakeLoads]:
    files = {f"d.item.{n}.sql": items([(b"%d" % n, b"1")]) for n in range(3)}
    source = kind.open(write(folder / "dump", files))
    settings = replace(settings_of(mariadb, folder), apply=Apply(worker_count=1))
    made = BootstrapPlanner(
        settings,
        source,
        SourceSchema(source.position, 5, (Schema(ITEM.schema_id, "d"),), (ITEM,)),
        7,
        ["d.*"],
    )
    return settings, made, lambda chunk, one: make_loads(source.spec(), chunk, one)


def test_a_copy_of_no_table_is_refused(mariadb: MariaDBServer, tmp_path: Path) -> None:
    settings = settings_of(mariadb, tmp_path)
    source = DumplingFolder.open(write(tmp_path / "dump", {}))
    made = BootstrapPlanner(settings, source, SourceSchema(source.position, 5, (), ()), 7)
    assert any("holds no table that the rules want" in problem for problem in made.plan().problems)


class Guessing(DumplingFolder):
    """A source that knows no sizes."""

    def chunks(self, table: Table) -> list[SourceChunk]:
        return [replace(chunk, bytes=64 << 20) for chunk in super().chunks(table)]


def test_a_copy_says_what_its_rows_had_and_not_what_its_plan_took_them_for(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, made, make = three_chunks(mariadb, tmp_path, Guessing)
    seen: list[CopyProgressCounts] = []
    job = made.begin()
    with job.run(Runner("a test")) as run:
        summary = made.run_of(job, run, lambda progress: seen.append(replace(progress))).whole(make)
    assert (summary.rows, summary.bytes) == (3, 12)  # each `0<tab>1<newline>`
    assert "in all   1 table: about 297 B in 3 chunks" in made.plan().lines()
    (last,) = [one for one in seen if one.chunks == 3][:1]
    assert copy_text(last, 3.0, 12.0).startswith("100 %, 12 B, 3 rows")
    progress = job.status().progress
    assert (progress.percent, progress.in_all.done.bytes, progress.left_s) == (100, 12, None)


def ordered(
    made: BootstrapPlanner, make: MakeLoads, order: str, runner: Runner | None = None
) -> tuple[Job, BootstrapSummary]:
    """A run to which something is ordered after its first chunk.

    The next ones don't come before.
    """
    job = made.begin()
    given = threading.Event()

    def waiting(chunk: SourceChunk, one: Table) -> Iterator[pa.RecordBatch]:
        if chunk.number:
            given.wait()
        return make(chunk, one)

    with job.run(runner or Runner("a test")) as run:

        def give(progress: CopyProgressCounts) -> None:
            if progress.rows == 1:
                job.order(order, "ann")
                run.look()
                given.set()

        return job, made.run_of(job, run, give).whole(waiting)


def test_a_copy_that_is_paused_stops_between_chunks_and_goes_on_with_what_is_left(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, made, make = three_chunks(mariadb, tmp_path)
    job, summary = ordered(made, make, PAUSE)
    assert (summary.state, job.status().state) == (PAUSED, PAUSED)
    assert 1 <= summary.rows_there < 3
    again = made.run(make)
    assert (again.rows, again.rows_there) == (3 - summary.rows_there, 3)
    assert job.status().state == DONE and job.status().progress.tables["d.item"].done.chunks == 3
    assert ask(mariadb, "SELECT id FROM d.item ORDER BY id") == [(0,), (1,), (2,)]


def test_a_copy_that_is_given_up_takes_back_what_it_made_and_another_may_begin(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, made, make = three_chunks(mariadb, tmp_path)
    job, summary = ordered(made, make, CANCEL)
    assert (summary.state, job.status().state, summary.left) == (CANCELLED, CANCELLED, ())
    assert (
        ask(mariadb, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd'")
        == []
    )
    assert ask(mariadb, "SELECT * FROM tidb_binlog.sluice_copied") == []
    assert made.run(make).rows_there == 3
    assert [one.id for one in Jobs(RelayLog.open(f"file://{tmp_path}/relay").storage).list()] == [
        "bootstrap", "bootstrap-2",
    ]  # fmt: skip


def test_rows_of_somebody_else_are_not_taken_back_and_are_named(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, made, make = three_chunks(mariadb, tmp_path)
    job, _ = ordered(made, make, PAUSE)
    ask(mariadb, "INSERT INTO d.item VALUES (77, 7)")
    job.order(CANCEL, "ann")
    with job.run(Runner("the next")) as run:
        summary = made.run_of(job, run).whole(make)
    assert "d.item has" in summary.left[0] and "another program wrote there" in summary.left[0]
    assert (77, 7) in ask(mariadb, "SELECT id, v FROM d.item")
    assert (
        job.status().entry.message == summary.left[0]
        and "before the next bootstrap begins" in job.status().entry.hint
    )


def test_processes_that_share_the_chunks_copy_each_once(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, made, make = three_chunks(mariadb, tmp_path)
    job = made.begin()
    with job.run(Runner("prepare", "group")) as run:
        assert made.run_of(job, run).prepare()

    def share(number: int, other: BootstrapPlanner, loads: MakeLoads) -> None:
        with job.join(Runner(f"copy {number}", "group")) as part:
            other.run_of(job, part).copy(loads, number, 3)

    others = [three_chunks(mariadb, tmp_path)[1:] for _ in range(3)]
    with ThreadPoolExecutor(len(others)) as threads:
        for part in [threads.submit(share, number, *other) for number, other in enumerate(others)]:
            part.result()
    assert job.status().progress.tables["d.item"].done == JobCounts(
        3, 12, 3, job.status().progress.in_all.bytes_in_all
    )
    with job.join(Runner("finish", "group")) as run:
        summary = made.run_of(job, run).finish(make)
    assert (summary.rows, summary.rows_there, job.status().state) == (0, 3, DONE)
    assert ask(mariadb, "SELECT id FROM d.item ORDER BY id") == [(0,), (1,), (2,)]
