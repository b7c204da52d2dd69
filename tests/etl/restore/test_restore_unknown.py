"""Tables whose rows were there before everything that is kept: what a restore makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.etl.history.retain import archive_status
from sluice.etl.restore import FilesRequest, RestoreRequest, plan_restore
from sluice.etl.settings import Settings, parse_settings
from sluice.relay import RelayLog
from sluice.tidb.ddl_actions import Action
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.restoring import archived, restore, restore_files, settings_of
from tests.etl.story import Story, table

_OLD = table(10, "t", "id int", "v int", primary="id")
_NEW = table(11, "t", "id int", "v int", primary="id")


def _rows(server: MariaDBServer) -> list[tuple[int, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, v FROM d_restored.t ORDER BY id")
        return list(cursor.fetchall())


def test_a_truncated_table_is_restored_though_its_rows_before_are_unknown(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """No snapshot, and the archive begins behind the table: its new rows are all there."""
    told = Story(mariadb, tmp_path)
    told.insert(_OLD, {"id": 1, "v": 1})
    before = told.now
    told.statement(Action.TRUNCATE_TABLE, "TRUNCATE TABLE t", 10, _NEW, name="t")
    told.insert(_NEW, {"id": 2, "v": 2})
    settings = settings_of(mariadb, told.url)
    archived(RelayLog.open(told.url), windows_a_volume=1)
    (promised,) = archive_status(settings).restorable
    assert before < promised.from_ts <= promised.until_ts == told.now
    refused = plan_restore(settings, RestoreRequest(before)).problems
    assert len(refused) == 1 and "d.t" in refused[0] and "sluice snapshot make" in refused[0]
    restore(settings, RestoreRequest(told.now))
    assert _rows(mariadb) == [(2, 2)]
    files = restore_files(settings, FilesRequest(told.now, (), tmp_path / "files", "csv"))
    assert [(one.name, one.rows) for one in files.tables] == [("d.t", 1)]


def test_a_table_that_only_changes_after_the_moment_show_is_missed_by_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    other = told.create(table(20, "u", "id int", primary="id"), "CREATE TABLE `u` (…)")
    moment = told.now
    told.insert(_OLD, {"id": 1, "v": 1})
    settings = settings_of(mariadb, told.url)
    archived(RelayLog.open(told.url), windows_a_volume=1)
    (refused,) = plan_restore(settings, RestoreRequest(moment)).problems
    assert refused.startswith("d.t: there before")
    assert archive_status(settings).restorable == ()
    assert [one.name for one in archive_status(settings).unknown] == ["d.t"]
    assert plan_restore(settings, RestoreRequest(moment, (other.full_name,))).problems == ()


def test_a_table_that_the_settings_leave_out_prevents_no_restore_of_the_others(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    told.create(table(20, "u", "id int", primary="id"), "CREATE TABLE `u` (…)")
    told.insert(_OLD, {"id": 1, "v": 1})
    settings = settings_of(mariadb, told.url)
    archived(RelayLog.open(told.url), windows_a_volume=1)
    pipeline = _without(settings, "d.t")
    plan = plan_restore(pipeline, RestoreRequest(told.now))
    assert ([one.full_name for one in plan.asked], plan.problems) == (["d.u"], ())
    assert any(note.startswith("d.t: not restored") for note in plan.notes)
    assert archive_status(pipeline).unknown == ()


def _without(settings: Settings, name: str) -> Settings:
    document = {
        "upstream": {"pd-urls": "http://127.0.0.1:1"},
        "relay": {"url": settings.relay.url},
        "downstream": {"host": "db"},
        "filter": {
            "ignore-table": [dict(zip(("db-name", "tbl-name"), name.split("."), strict=True))]
        },
    }
    return replace(settings, filters=parse_settings(document).filters)
