"""Rows of tables that aren't there downstream: nobody copied them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import SluiceError
from sluice.etl.operate.absent_tables import absent_tables, copying_hint
from sluice.etl.settings import Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table

_OLD = table(10, "t", "id int", "v int", primary="id")


def test_rows_of_a_table_that_is_not_there_are_refused_with_the_command_that_copies_it(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    told.insert(_OLD, {"id": 1, "v": 1})
    with pytest.raises(SluiceError) as caught:
        told.apply()
    assert "d.t" in str(caught.value)
    assert "sluice bootstrap" in caught.value.hint


def test_tables_that_are_not_downstream_are_named_and_those_that_are_there_are_not(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    there = told.create(table(20, "u", "id int", primary="id"), "CREATE TABLE `u` (…)")
    told.apply()
    settings = Settings(Upstream("unused"), Relay(told.url), mariadb.downstream)
    assert absent_tables(settings, mariadb.downstream, [_OLD, there]) == ["d.t"]
    assert "sluice bootstrap" in copying_hint(["d.t"], is_all=True)
    assert "sluice backfill --table d.t" in copying_hint(["d.t"], is_all=False)


def test_a_pipeline_that_begins_with_the_creation_of_its_tables_needs_no_copy(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    told = Story(mariadb, tmp_path)
    told.create(_OLD, "CREATE TABLE `t` (…)")
    told.insert(_OLD, {"id": 1, "v": 1})
    told.apply()
    assert told.rows("t") == [(1, 1)]
