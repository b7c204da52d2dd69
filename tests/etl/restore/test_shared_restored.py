"""Restores of what was committed at shared timestamps, from an archive whose windows are joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.restore import RestoreRequest
from sluice.relay import RelayLog
from sluice.relay.archive import sync_overrides
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.restoring import archived, restore, settings_of
from tests.etl.shared_story import SharedStory
from tests.etl.story import column, table, wider

ONE = table(11, "one", "id int", "v int", primary="id", unique=("v",))
OTHER = table(12, "other", "id int", "v int", primary="id")


@pytest.mark.parametrize("until", ["middle", "end"])
def test_a_restore_has_every_transaction_but_the_one_that_was_skipped(
    mariadb: MariaDBServer, tmp_path: Path, until: str
) -> None:
    story = SharedStory(mariadb, tmp_path)
    story.create(ONE, "CREATE TABLE `one` (`id` int primary key, `v` int unique)")
    story.create(OTHER, "CREATE TABLE `other` (`id` int primary key, `v` int)")
    story.insert(ONE, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    with story.together(again=True):
        story.update(ONE, {"id": 1, "v": 1}, {"id": 1, "v": 10})
        story.insert(OTHER, {"id": 7, "v": 7})
        story.insert(OTHER, {"id": 8, "v": 8})
    middle, skipped = story.now, story.now - 1
    grown = wider(ONE, column(3, "w int"))
    with story.together():
        story.delete(ONE, {"id": 2, "v": 2})
        story.insert(OTHER, {"id": 9, "v": 9})
        story.statement(5, "ALTER TABLE `one` ADD COLUMN `w` int", grown)
    story.insert(grown, {"id": 3, "v": 3, "w": 3})
    settings = settings_of(mariadb, story.url)
    operate.skip_transaction(settings, middle, start_ts=skipped)
    story.apply()
    relay = RelayLog.open(story.url)
    archive = archived(relay, windows_a_volume=100)
    sync_overrides(relay.overrides, archive.overrides_of(relay.pipeline))
    wanted = RestoreRequest(middle if until == "middle" else story.now, into="{schema}_restored")
    restore(settings, wanted)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        found = {}
        for schema in ("d", "d_restored"):
            for name in ("one", "other"):
                cursor.execute(f"SELECT * FROM `{schema}`.`{name}` ORDER BY 1")
                found[schema, name] = list(cursor.fetchall())
    assert found["d", "one"] == [(1, 10, None), (3, 3, 3)]
    assert found["d", "other"] == [(7, 7), (9, 9)]
    if until == "middle":
        assert found["d_restored", "one"] == [(1, 10), (2, 2)]
        assert found["d_restored", "other"] == [(7, 7)]
    else:
        assert all(found["d", name] == found["d_restored", name] for name in ("one", "other"))
