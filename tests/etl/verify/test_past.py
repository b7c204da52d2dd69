"""The downstream against snapshot and archive, computed by other means than those that applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.history.as_of import run_locally
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.settings import Settings
from sluice.etl.verify.archive_endpoint import ArchiveEndpoint
from sluice.relay import RelayLog
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.odd_names import ROWS, odd_tables
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.restore.restoring import archived, settings_of
from tests.etl.story import Story, table
from tests.etl.verify.corrupting import Damager, damaged


@pytest.fixture(scope="module")
def pipeline(
    mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """A replica of every type, and its archive."""
    mariadb_server.empty()
    folder: Path = tmp_path_factory.mktemp("past")
    relay = land(RECORDINGS / "types", f"file://{folder}/relay", 200)
    archived(relay)
    settings = settings_of(mariadb_server, relay.url)
    last = relay.last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=300, prepare=local_preparer(settings))
    yield settings


def compared(settings: Settings) -> tuple[dict[str, tuple[int, int]], int, ArchiveEndpoint]:
    """By table how many rows must come and go; how many tables were compared; how."""
    with ConsistentReader.open(settings.downstream, 7, 1) as snapshot:
        side = ArchiveEndpoint(settings, snapshot.checkpoint.commit_ts, run_locally)
        found = [
            one for opened in side.open() for one in opened.compare(snapshot, lambda doing: None)
        ]
    wrong = {
        one.table.full_name: (one.apart.come.num_rows, one.apart.gone.num_rows)
        for one in found
        if one.apart is not None
    }
    return wrong, len(found), side


@pytest.mark.slow
def test_every_corruption_is_found_without_a_tidb_and_nothing_else(
    pipeline: Settings, mariadb_server: MariaDBServer
) -> None:
    wrong, tables, side = compared(pipeline)
    assert (wrong, side.unknown) == ({}, {}) and tables > 30
    assert any("not with TiDB" in note for note in side.notes)
    damager = Damager(mariadb_server, 5, ("types",), float_zeros=False)
    try:
        before = damager.dump()
        damager.damage(40)
        expected = {name: (come, gone) for name, come, gone in damaged(before, damager.dump())}
    finally:
        damager.close()
    assert len(expected) > 15
    assert compared(pipeline)[0] == expected


def test_merged_tables_are_compared_as_one_without_a_tidb_too(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    tables = [
        table(21, "orders_1", "id int", "v varchar(9)", primary="id"),
        table(22, "orders_2", "ID int", "v varchar(9)", primary="ID"),
    ]
    for made in tables:
        key = made.columns[0].name
        story.create(made, f"CREATE TABLE `{made.name}` (`{key}` INT PRIMARY KEY, `v` VARCHAR(9))")
    story.insert(tables[0], *({"id": n, "v": f"v{n}"} for n in range(40)))
    story.insert(tables[1], *({"ID": n, "v": f"v{n}"} for n in range(100, 140)))
    relay = RelayLog.open(story.url)
    archived(relay)
    last = relay.last()
    assert last is not None
    rule = Route("d", "orders_*", "d", "orders", "the rule about orders")
    settings = replace(settings_of(mariadb, story.url), routes=Routes((rule,)))
    run_apply(settings, until_ts=last.hi, run_seconds=300, prepare=local_preparer(settings))
    assert compared(settings)[:2] == ({}, 1)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute("UPDATE d.orders SET v = 'V7' WHERE id = 7 OR id = 107") == 2
        assert cursor.execute("DELETE FROM d.orders WHERE id = 103") == 1
    wrong, _, side = compared(settings)
    assert (wrong, side.unknown) == ({"d.orders_1": (3, 2)}, {})


@pytest.mark.slow
def test_tables_whose_names_need_quoting_are_compared_each_with_its_own_past(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story, tables = odd_tables(mariadb, tmp_path)
    archived(RelayLog.open(story.url), windows_a_volume=1000)
    story.apply()
    settings = settings_of(mariadb, story.url)
    wrong, count, side = compared(settings)
    assert (wrong, count, side.unknown) == ({}, len(tables), {})
    with mariadb.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute("DELETE FROM `my.db`.orders WHERE id < 5") == 5
        assert cursor.execute("DELETE FROM my.`db.orders`") == ROWS
        assert cursor.execute("UPDATE MyApp.`a``b` SET n = 'x' WHERE id = 1") == 1
    expected = {"`my.db`.orders": (5, 0), "my.`db.orders`": (ROWS, 0), "MyApp.a`b": (1, 1)}
    assert compared(settings)[0] == expected
