"""Conflicts of two clusters that replicate each other: what is refused, and what becomes of halves.

`test_two_clusters` has both sides at work.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply._conflicts import _check_decidable
from sluice.etl.apply._touched_keys import TouchedKeys
from sluice.etl.apply.run import ApplyError
from sluice.etl.changes.planning import LOST_BOTH, LOST_NEW, LOST_OLD, LostChange
from sluice.etl.changes.planning._lost_changes import without_lost
from sluice.etl.downstream import DownstreamError
from sluice.etl.settings import Settings, load_settings
from sluice.etl.settings.errors import SettingsError
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb.rows import decode_deletes, decode_inserts, encode_update
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table, with_item

HEAP = table(12, "named", "name varchar(9)", "v int", primary="name", clustered=False)


def settings_text(relay: str, reverse: str, port: int = 3306, more: str = "") -> str:
    return (
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{relay}"\n[downstream]\n'
        f'host = "127.0.0.1"\nport = {port}\nuser = "sluice"\nloopback-control = true\n'
        f'channel-id = 7\n[apply]\nconflicts = "last-commit-wins"\nreverse-relay = "{reverse}"\n'
        f"{more}"
    )


def settings_of(folder: Path, text: str) -> Settings:
    path = folder / "sluice.toml"
    path.write_text(text)
    return load_settings(path)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('reverse-relay = "file:///b"', "", "needs reverse-relay"),
        ("last-commit-wins", "first", "must be 'stop' or 'last-commit-wins'"),
        ("file:///b", "file:///a", "is [relay] url"),
        ("loopback-control = true", "", "needs [downstream] loopback-control"),
        ("[apply]\n", '[apply]\nmode = "parallel"\n', "needs [apply] mode = 'atomic'"),
        (
            "[apply]",
            '[[route]]\nschema-pattern = "a"\ntarget-schema = "b"\n[apply]',
            "can't be used with [[route]]",
        ),
        (
            "[apply]",
            '[[filter.rows]]\ntables = ["a.b"]\nwhere = "c = 1"\n[apply]',
            "can't be used with [[filter.rows]] 1",
        ),
    ],
)
def test_settings_that_cannot_decide_conflicts_are_refused_by_name(
    tmp_path: Path, old: str, new: str, part: str
) -> None:
    text = settings_text("file:///a", "file:///b")
    assert old in text
    with pytest.raises(SettingsError) as caught:
        settings_of(tmp_path, text.replace(old, new, 1))
    assert part in str(caught.value)


def test_a_downstream_without_optimistic_transactions_is_refused_by_name(
    own_mariadb_server: MariaDBServer, tmp_path: Path
) -> None:
    own_mariadb_server.empty()
    story = with_item(own_mariadb_server, tmp_path)
    other = Story(own_mariadb_server, tmp_path / "other")
    settings = settings_of(tmp_path, settings_text(story.url, other.url, own_mariadb_server.port))
    with pytest.raises(DownstreamError, match="reverse-relay needs a TiDB"):
        run_apply(settings, until_ts=story.now, run_seconds=60, prepare=local_preparer(settings))


@pytest.mark.parametrize(
    ("made", "part"),
    [
        (table(11, "t", "a int"), "it has no key"),
        (
            table(11, "t", "a varchar(9) collate utf8mb4_unicode_ci", primary="a"),
            "utf8mb4_unicode_ci",
        ),
        (
            replace(table(11, "t", "a int", primary="a"), foreign_keys=({"fk_name": "f"},)),
            "has foreign keys",
        ),
    ],
)
def test_tables_whose_rows_cannot_be_decided_are_refused_by_name(made: Table, part: str) -> None:
    with pytest.raises(ApplyError, match=part) as caught:
        _check_decidable(TouchedKeys(made, PART_SCHEMA.empty_table()))
    assert "d.t" in str(caught.value)


def moved_row() -> pa.Table:
    """An update that moves a row from key a to key b, in a table with a hidden row id."""
    old, new = ({"name": name, "v": 1, "_tidb_rowid": 5} for name in "ab")
    row: list[Any] = [10, 9, 3, HEAP.id, 1, UPDATE, encode_update(HEAP, old, new)]
    columns = [pa.array([value], form.type) for value, form in zip(row, PART_SCHEMA, strict=True)]
    return pa.Table.from_arrays(columns, schema=PART_SCHEMA)


@pytest.mark.parametrize(
    ("part", "kind", "name"), [(LOST_OLD, INSERT, "b"), (LOST_NEW, DELETE, "a")]
)
def test_of_an_update_that_moves_a_row_the_half_that_did_not_lose_goes_downstream(
    part: int, kind: int, name: str
) -> None:
    lost = (LostChange(10, 9, 3, part), LostChange(10, 9, 4), LostChange(10, 8, 3))
    found = without_lost(moved_row(), lost, lambda _: HEAP)
    assert found["kind"].to_pylist() == [kind]
    decoded = (decode_inserts if kind == INSERT else decode_deletes)(
        HEAP, found["row"].combine_chunks()
    )
    assert decoded["name"].to_pylist() == [name]
    whole = [LostChange(10, 9, 3, LOST_BOTH)]
    assert without_lost(moved_row(), whole, lambda _: HEAP).num_rows == 0
