"""Several DDL statements between a Drainer's checkpoint and the place where it broke off, wherever that is."""

from __future__ import annotations

from pathlib import Path

from etl.apply import ApplyError, local_preparer, run_apply
from etl.ddl import DdlError
from etl.settings import Relay, Settings, Upstream
from relay import Control
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table
from tests.etl.test_safe_mode import forget, leave_checkpoint

ADD_COLUMN, DROP_COLUMN, DROP_TABLE, RENAME_TABLE = 5, 6, 4, 14
PAIRS = [(0, 9), (0, 12), (1, 2), (1, 5), (1, 11), (3, 9), (4, 12), (5, 8), (5, 11), (6, 9), (7, 12), (8, 11)]
"""Checkpoints and how far the Drainer had come, as numbers of steps."""
ID, V = column(1, "id int"), column(2, "v int")
OTHER = table(30, "other", "id int", "v int", primary="id")
LOG = table(31, "log", "a int", "b int")


def tell(story: Story) -> list[int]:
    """Tables come, go, come back under the same name, and get columns that they lose again; after each step its commit_ts."""
    marks = [story._ts]

    def done() -> None:
        marks.append(story._ts)

    first = story.create(table(11, "item", ID, V, primary="id"), "CREATE TABLE `item` (`id` int primary key, `v` int)")
    done()
    story.insert(first, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    story.insert(OTHER, {"id": 1, "v": 1})
    done()
    story.statement(DROP_TABLE, "DROP TABLE `item`", 11, name="item")
    done()
    story.insert(OTHER, {"id": 2, "v": 2})
    story.insert(LOG, {"a": 1, "b": 1})
    done()
    again = story.create(table(12, "item", ID, V, primary="id"), "CREATE TABLE `item` (`id` int primary key, `v` int)")
    done()
    story.insert(again, {"id": 2, "v": 20}, {"id": 3, "v": 30})
    done()
    wider = table(12, "item", ID, V, column(3, "x int"), primary="id")
    story.statement(ADD_COLUMN, "ALTER TABLE `item` ADD COLUMN `x` int", wider)
    done()
    story.insert(wider, {"id": 4, "v": 40, "x": 4})
    done()
    other = table(12, "item", ID, column(3, "x int"), primary="id")
    story.statement(DROP_COLUMN, "ALTER TABLE `item` DROP COLUMN `v`", other)
    done()
    story.insert(other, {"id": 5, "x": 5})
    done()
    last = table(12, "item", ID, primary="id")
    story.statement(DROP_COLUMN, "ALTER TABLE `item` DROP COLUMN `x`", last)
    done()
    story.insert(last, {"id": 6})
    story.delete(OTHER, {"id": 1, "v": 1})
    done()
    return marks


def test_it_goes_on_from_wherever_the_drainer_broke_off(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    story.create(OTHER, "CREATE TABLE `other` (`id` int primary key, `v` int)")
    story.create(LOG, "CREATE TABLE `log` (`a` int, `b` int)")
    marks = tell(story)
    settings = Settings(Upstream("unused"), Relay(story._url), mariadb.downstream)
    bad, refused = [], []
    for checkpoint, reached in PAIRS:
        mariadb.empty()
        forget(story._url)
        story._relay.set_control(Control())
        run_apply(settings, until_ts=marks[reached], run_seconds=30, prepare=local_preparer(settings))
        with mariadb.connect() as connection:
            connection.cursor().execute("DROP DATABASE IF EXISTS sluice_recycle")
            leave_checkpoint(connection, marks[checkpoint], sluice={"safe-until": marks[reached]})
        forget(story._url)
        try:
            run_apply(settings, until_ts=marks[-1], run_seconds=30, prepare=local_preparer(settings))
            found = story.rows("item"), story.rows("other"), story.rows("log")
            if found != ([(i,) for i in (2, 3, 4, 5, 6)], [(2, 2)], [(1, 1)]):
                bad.append(f"{checkpoint} to {reached}: {found}")
        except (ApplyError, DdlError) as error:
            if "d.log has no key" in str(error):
                refused.append((checkpoint, reached))
                continue
            bad.append(f"{checkpoint} to {reached}: {type(error).__name__} {error!s:.250}")
    assert refused == [(1, 5)], "dropped and made again: nothing tells whether it was, nor whose rows are in a table without a key"
    assert not bad, "\n".join(bad)
