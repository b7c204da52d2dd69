"""Tables end as replication would have made them, whenever their indexes are made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.worker import make_loads
from sluice.tidb.schema import Column, Schema, Table
from tests.etl.copy.copying import DUMPS, RECORDING, bootstrap, definitions, settings_of
from tests.etl.copy.dump_writer import POSITION, write
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.snapshots import differences

LOOKS = (
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, SUB_PART,"
        " NON_UNIQUE FROM information_schema.STATISTICS WHERE TABLE_SCHEMA IN ('types', 'bank')"
    ),
    (
        "SELECT CONSTRAINT_SCHEMA, CONSTRAINT_NAME, TABLE_NAME, REFERENCED_TABLE_NAME, DELETE_RULE"
        " FROM information_schema.REFERENTIAL_CONSTRAINTS"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME,"
        " GENERATION_EXPRESSION, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN"
        " ('types', 'bank')"
    ),
    (
        "SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME FROM information_schema.PARTITIONS WHERE"
        " TABLE_SCHEMA IN ('types', 'bank')"
    ),
)


def looks(server: MariaDBServer) -> list[set[Any]]:
    with server.connect() as connection, connection.cursor() as cursor:
        found = []
        for query in LOOKS:
            cursor.execute(query)
            found.append(set(cursor.fetchall()))
        return found


@pytest.mark.slow
def test_tables_are_the_same_whether_indexes_come_before_or_after_the_rows(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = RECORDING / "dump-csv"
    before = bootstrap(settings_of(mariadb, tmp_path / "before"), dump)
    made = looks(mariadb)
    assert len(made[0]) > 50 and made[1]
    mariadb.empty()
    monkeypatch.setattr(BootstrapPlanner, "indexes_after_bytes", 0)
    after = bootstrap(settings_of(mariadb, tmp_path / "after"), dump)
    assert looks(mariadb) == made
    assert sorted(after.warnings) == sorted(before.warnings)
    assert differences(RECORDING, DUMPS["dump-csv"], mariadb) == []


@pytest.mark.slow
def test_indexes_that_an_interruption_left_out_are_made_by_the_next_process(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BootstrapPlanner, "indexes_after_bytes", 0)
    settings = settings_of(mariadb, tmp_path)
    source = DumplingFolder.open(str(RECORDING / "dump-csv"))
    made = BootstrapPlanner(settings, source, definitions(source.position), 7)
    asked = 0

    def ends_early(progress: Any) -> None:
        nonlocal asked
        asked += progress.doing.startswith("indexes of")
        if asked == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(
            lambda chunk, table: make_loads(source.spec(), chunk, table), on_progress=ends_early
        )
    assert bootstrap(settings, RECORDING / "dump-csv").rows == 0
    found = looks(mariadb)
    mariadb.empty()
    bootstrap(settings_of(mariadb, tmp_path / "whole"), RECORDING / "dump-csv")
    assert looks(mariadb) == found


def test_views_sequences_and_temporary_tables_are_made_as_the_upstream_has_them(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    item = Table(7, 3, "d", "item", (Column(1, "id", 0, 3),))
    view = replace(
        item, id=8, name="seen", is_view=True, view={"view_select": "SELECT `id` FROM `d`.`item`"}
    )
    sequence = Table(
        9,
        3,
        "d",
        "counter",
        is_sequence=True,
        sequence={
            "sequence_start": 1,
            "sequence_min_value": 1,
            "sequence_max_value": 99,
            "sequence_increment": 1,
            "sequence_cache": False,
        },
    )
    temporary = replace(item, id=10, name="scratch", temp_table_type=1)
    url = write(tmp_path / "dump", {"d.item.0.sql": b"INSERT INTO `item` VALUES\n(1),\n(2);\n"})
    source = DumplingFolder.open(url)
    found = SourceSchema(POSITION, 1, (Schema(3, "d"),), (item, view, sequence, temporary))
    made = BootstrapPlanner(settings_of(mariadb, tmp_path), source, found, 7)
    assert (
        "note     views, sequences and temporary tables are made as the upstream has them:"
        " d.seen, d.counter, d.scratch"
    ) in made.plan().lines()
    made.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM d.seen")
        assert cursor.fetchone() == (2,)
        cursor.execute("SELECT NEXTVAL(d.counter)")
        assert cursor.fetchone() == (1,)
        cursor.execute("SELECT COUNT(*) FROM d.scratch")
        assert cursor.fetchone() == (0,)
