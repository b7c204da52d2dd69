"""Stored generated columns that another server may compute otherwise: snapshots hold them, and what
lacks them is known.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy import snapshot_files as snapshot_files
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.history.as_of import run_locally, tables_as_of
from sluice.etl.history.retain import archive_status, tables_restorable_at
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.from_downstream import plan_ranges, write_ranges
from sluice.etl.history.snapshots.preflight import downstream_tables
from sluice.etl.restore import FilesRequest, RestoreRequest, plan_restore
from sluice.etl.settings import Settings
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from sluice.tidb import tso
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.restoring import archived, restore, restore_files, settings_of, snapshot_at
from tests.etl.story import Story, column, table

BORN = [(n, n, datetime.datetime(2020, 1, 1, 20), datetime.date(2020, 1, 2)) for n in range(4)]


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> tuple[Settings, int]:
    """Rows before and behind a snapshot; TiDB computes the table's days in its own time zone."""
    told = Story(mariadb, tmp_path)
    day = column(4, "d date", generated="date(`ts`)", generated_stored=True)
    made = table(10, "t", "id int", "v int", "ts timestamp", day, primary="id")
    told.create(made, "CREATE TABLE `t` (…)")
    rows = [{"id": n, "v": n, "ts": "2020-01-01 20:00:00", "d": "2020-01-02"} for n in range(5)]
    told.insert(made, *rows[:3])
    settings = settings_of(mariadb, told.url)
    relay = RelayLog.open(told.url)
    middle = relay.last()
    told.insert(made, *rows[3:])
    told.update(made, rows[1], {"v": 7})
    told.delete(made, rows[4])
    told.apply()
    archived(relay, windows_a_volume=1)
    assert middle is not None
    return settings, middle.hi


def rows(server: MariaDBServer, schema: str = "d_restored") -> list[tuple[Any, ...]]:
    with (
        server.connect(init_command="SET time_zone='+00:00'") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT * FROM {schema}.t ORDER BY id")
        return list(cursor.fetchall())


def end(settings: Settings) -> int:
    last = settings.open_relay().last()
    assert last is not None
    return last.hi


EXPECTED = [(*row[:1], 7 if row[0] == 1 else row[1], *row[2:]) for row in BORN]


def test_a_restore_from_a_snapshot_has_the_values_that_tidb_computed(
    story: tuple[Settings, int], mariadb: MariaDBServer, tmp_path: Path
) -> None:
    settings, middle = story
    snapshot = snapshot_at(settings, middle)
    assert snapshot.tables[0].files[0].computed == ("d",)
    plan = plan_restore(settings, RestoreRequest(end(settings)))
    assert (plan.snapshot, plan.problems) == (snapshot.id, ())
    restore(settings, RestoreRequest(end(settings)))
    assert rows(mariadb) == EXPECTED
    (range_,) = archive_status(settings).tables
    assert range_.name == "d.t" and tables_restorable_at(settings, snapshot, end(settings))
    (done,) = restore_files(
        settings, FilesRequest(end(settings), (), tmp_path / "files", "csv")
    ).tables
    assert done.left_out == ()
    assert '2020-01-01 20:00:00","2020-01-02"' in (tmp_path / "files/d.t.csv").read_text()


def test_a_snapshot_of_the_downstream_holds_them_too(
    story: tuple[Settings, int], mariadb: MariaDBServer
) -> None:
    settings, _ = story
    storage = Archive.open(settings.archive_url).storage
    past = tables_as_of(settings, end(settings), ["d.t"], run=run_locally)
    known = SourceSchema(end(settings), 1, (), tuple(one.table for one in past.tables.values()))
    with ConsistentReader.open(settings.downstream, 7, 1) as snapshot:
        places, problems = downstream_tables(settings, known, snapshot.session(0))
        assert problems == []
        ((_, (file,)),) = write_ranges(
            snapshot, plan_ranges(snapshot, places), storage, "snapshots/x", lambda: True
        )
    assert (file.rows, file.computed) == (4, ("d",))
    (batch,) = snapshot_files.read_file(storage, file, known.tables[0])
    assert batch.column("d").to_pylist() == ["2020-01-02"] * 4


def without_computed(monkeypatch: pytest.MonkeyPatch, settings: Settings, ts: int) -> str:
    """A snapshot as older versions made them."""
    write = snapshot_files.write_files

    def older(storage: Any, folder: str, of: Any, batches: Sequence[Any]) -> Any:
        names = [one.name for one in of.writable_columns]
        return write(storage, folder, of, (batch.select(names) for batch in batches))

    with monkeypatch.context() as patched:
        patched.setattr("sluice.etl.history.as_of.aggregations.write_files", older)
        return snapshot_at(settings, ts).id


@pytest.mark.slow
def test_of_a_snapshot_without_them_the_way_is_another_one_and_the_promise_is_that_of_the_restore(
    story: tuple[Settings, int],
    mariadb: MariaDBServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings, middle = story
    older = without_computed(monkeypatch, settings, middle)
    plan = plan_restore(settings, RestoreRequest(end(settings)))
    assert (plan.snapshot, plan.problems) == ("", ())
    restore(settings, RestoreRequest(end(settings)))
    assert rows(mariadb) == EXPECTED
    snapshot = Archive.open(settings.archive_url).snapshots.get(older)
    assert tables_restorable_at(settings, snapshot, end(settings)) == {}
    (range_,) = archive_status(settings).tables
    assert (range_.snapshot, tso.text(range_.from_ts)) != (older, tso.text(middle))
    (done,) = restore_files(
        settings, FilesRequest(end(settings), (), tmp_path / "files", "csv")
    ).tables
    assert done.left_out == ()
    next_one = snapshot_at(settings, middle + 1)
    assert next_one.tables[0].files[0].computed == ("d",)


def test_where_nothing_tells_them_a_restore_is_refused_and_not_promised(
    story: tuple[Settings, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings, middle = story
    older = without_computed(monkeypatch, settings, middle)
    archive = Archive.open(settings.archive_url)
    archive.remove(middle)
    for one in Archive.open(settings.archive_url).snapshots.all():
        assert one.id == older
    plan = plan_restore(settings, RestoreRequest(end(settings)))
    assert any("d.t: d would be" in problem for problem in plan.problems)
    assert archive_status(settings).tables == ()
    (done,) = restore_files(
        settings, FilesRequest(end(settings), (), tmp_path / "files", "csv")
    ).tables
    assert done.left_out == ("d",)
