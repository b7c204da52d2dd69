"""Loopback control: what is written downstream has Drainer's mark, and what has the mark upstream
came from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import OK, WARN
from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.operate.doctor import check_pipeline
from sluice.etl.settings import Apply, Relay, Settings, Upstream, load_settings
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.relay.measures import CounterStore
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import ITEM, Story, table, with_item
from tests.etl.tidb_stand_in import TIDB, TiDBStandIn

MARKS = replace(
    table(
        90,
        "_drainer_repl_mark",
        "id bigint not null",
        "channel_id bigint not null",
        "val bigint",
        "channel_info varchar(64)",
        primary="id,channel_id",
    ),
    schema_name="retl",
    schema_id=9,
)
MARK = {"id": 3, "channel_id": 7, "val": 1, "channel_info": ""}


def two_way(story: Story, channel: int = 7, mode: str = "atomic") -> Settings:
    """Settings as a file with loopback control gives them."""
    path = Path(story.url.removeprefix("file://")).with_name("two-way.toml")
    to = story.server.downstream
    path.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{story.url}"\n[downstream]\n'
        f'host = "{to.host}"\nport = {to.port}\nuser = "{to.user}"\n'
        f'loopback-control = true\nchannel-id = {channel}\n[apply]\nmode = "{mode}"\n'
    )
    return load_settings(path)


def apply(story: Story, settings: Settings) -> ApplySummary:
    return run_apply(
        settings, until_ts=story.now, run_seconds=240, prepare=local_preparer(settings)
    )


def marked_story(server: MariaDBServer, folder: Path) -> Story:
    """A story of ITEM and of the mark table, as TiDB's binlogs have it."""
    story = with_item(server, folder)
    story.statement(
        1,
        "CREATE DATABASE `retl`",
        schemas={9: Schema(9, "retl", "utf8mb4", "utf8mb4_bin")},
        schema="retl",
    )
    story.statement(3, "CREATE TABLE `_drainer_repl_mark` (...)", MARKS, schema="retl")
    return story


def item(number: int, value: int = 0) -> tuple[Table, int, bytes]:
    return ITEM, INSERT, encode_insert(ITEM, {"id": number, "v": value})


def mark(kind: int, channel: int = 7) -> tuple[Table, int, bytes]:
    row = MARK | {"channel_id": channel}
    if kind == UPDATE:
        return MARKS, kind, encode_update(MARKS, row, row | {"val": 2})
    return MARKS, kind, (encode_insert if kind == INSERT else encode_delete)(MARKS, row)


@pytest.mark.parametrize("kind", [INSERT, UPDATE, DELETE])
def test_a_transaction_with_the_channels_mark_is_left_out_and_counted(
    mariadb: MariaDBServer, tmp_path: Path, kind: int
) -> None:
    story = marked_story(mariadb, tmp_path)
    story.changes(mark(kind), item(2), item(3))
    story.changes(item(4))
    story.changes(item(5), mark(kind))  # wherever the mark is in it
    settings = two_way(story)
    apply(story, settings)
    assert story.rows("item") == [(1, 1), (4, 0)]
    counts = CounterStore(settings.open_relay(), settings.downstream_name).totals().apply
    assert counts.counts["returned"] == 2


def test_the_rows_of_marks_and_their_database_never_go_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = marked_story(mariadb, tmp_path)
    story.changes(mark(INSERT, channel=8))  # a Drainer's of another pair, at its start
    apply(story, two_way(story))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT channel_id FROM retl._drainer_repl_mark")
        assert cursor.fetchall() == ((7,),)  # this pipeline's own


def test_rows_with_another_channels_mark_stop_by_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = marked_story(mariadb, tmp_path)
    story.changes(mark(UPDATE, channel=8), item(2))
    with pytest.raises(ApplyError, match=r"mark of channel 8 in retl\._drainer_repl_mark.* is 7"):
        apply(story, two_way(story))


def test_without_loopback_control_marks_are_rows_like_others(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = with_item(mariadb, tmp_path)
    marks = replace(MARKS, schema_name="d", schema_id=1)
    story.create(
        marks,
        "CREATE TABLE `_drainer_repl_mark` (`id` bigint, `channel_id` bigint, `val` bigint,"
        " `channel_info` varchar(64), PRIMARY KEY (`id`, `channel_id`))",
    )
    story.changes((marks, INSERT, encode_insert(marks, MARK)), item(2))
    story.apply()
    assert (story.rows("item"), len(story.rows("_drainer_repl_mark"))) == ([(1, 1), (2, 0)], 1)


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_every_transaction_that_writes_rows_is_marked(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = with_item(mariadb, tmp_path)
    settings = two_way(story, mode=mode)
    assert settings.apply == Apply(mode=mode)
    apply(story, settings)
    before = marks_of(mariadb)
    assert before > 0
    for number in range(2, 5):
        story.changes(item(number))
        apply(story, settings)
    assert marks_of(mariadb) >= before + 3


def marks_of(server: MariaDBServer) -> int:
    """Marks that were written by channel 7."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT SUM(val) FROM retl._drainer_repl_mark WHERE channel_id = 7")
        return int(cursor.fetchall()[0][0] or 0)


def test_a_mark_comes_and_goes_with_its_transaction(mariadb: MariaDBServer) -> None:
    session = MySQLSession(replace(mariadb.downstream, loopback_control=True, channel_id=7))
    session.connect()
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int)")
    session.begin()
    session.query("SELECT 1 FROM d.t FOR UPDATE")
    session.commit()
    assert marks_of(mariadb) == 0  # nothing was written
    session.begin()
    session.execute("INSERT INTO d.t VALUES (1)")
    session.rollback()
    session.begin()
    session.commit()
    assert marks_of(mariadb) == 0
    session.begin()
    session.execute("INSERT INTO d.t VALUES (1)")
    session.commit()
    assert marks_of(mariadb) == 1
    session.close()


def test_commits_of_nothing_wait_and_what_comes_behind_them_does_not(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = with_item(mariadb, tmp_path)
    settings = two_way(story)
    stop, batches = threading.Event(), []
    running = threading.Thread(
        target=run_apply,
        args=(settings,),
        kwargs={
            "stop": stop,
            "run_seconds": 60,
            "prepare": local_preparer(settings),
            "on_batch": batches.append,
        },
    )
    running.start()
    try:
        wait_for(lambda: checkpoint_of(settings) == story.now and batches)
        written = len(batches)
        for _ in range(5):
            story.idle(story.now + 10)
            time.sleep(0.03)
        assert (len(batches), checkpoint_of(settings)) == (written, story.now - 50)
        story.changes(item(2))
        wait_for(lambda: checkpoint_of(settings) == story.now)
    finally:
        stop.set()
        running.join(30)
    assert story.rows("item") == [(1, 1), (2, 0)]


def checkpoint_of(settings: Settings) -> int:
    found = read_checkpoint(settings.target, 7)
    return found.commit_ts if found is not None else 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_with_sync_ddl_off_rows_alone_go_downstream(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = with_item(mariadb, tmp_path)
    story.apply()
    other = table(12, "other", "id int", primary="id")
    story.create(other, "CREATE TABLE `other` (`id` int primary key)")
    story.changes(item(2))
    path = tmp_path / "rows.toml"
    path.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{story.url}"\n[filter]\n'
        f'sync-ddl = false\n[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}\n'
        'user = "sluice"\n'
    )
    apply(story, load_settings(path))
    assert story.rows("item") == [(1, 1), (2, 0)]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES IN d")
        assert cursor.fetchall() == (("item",),)


def test_settings_without_it_have_no_channel(tmp_path: Path, mariadb: MariaDBServer) -> None:
    settings = Settings(Upstream("unused"), Relay("file:///x"), mariadb.downstream)
    assert settings.downstream.channel is None
    assert "retl" not in settings.filters.own_schemas


def test_doctor_names_a_missing_mark_table_and_makes_none(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = with_item(mariadb, tmp_path)
    settings = two_way(story)
    *_, found = check_pipeline(settings, ("downstream",))
    assert (found.state, "CREATE TABLE IF NOT EXISTS retl" in found.hint) == (WARN, True)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES LIKE 'retl'")
        assert cursor.fetchall() == ()
    apply(story, settings)
    assert [one.state for one in check_pipeline(settings, ("downstream",))] == [OK]


def ring_of(story: Story, mode: str = "atomic") -> Settings:
    """Settings of the pipeline from the cluster of channel 7 to that of 8; 9 is before it."""
    settings = two_way(story, mode=mode)
    return replace(settings, downstream=replace(settings.downstream, ring=(7, 8, 9)))


def channels_of(server: MariaDBServer) -> set[int]:
    """The channels of which there are marks."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT channel_id FROM retl._drainer_repl_mark")
        return {int(channel) for (channel,) in cursor.fetchall()}


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_in_a_ring_what_came_from_another_cluster_keeps_its_mark(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = marked_story(mariadb, tmp_path)
    story.changes(item(2), mark(UPDATE, channel=8))  # of the downstream
    story.changes(item(3))
    settings = ring_of(story, mode)
    apply(story, settings)
    assert (story.rows("item"), channels_of(mariadb)) == ([(1, 1), (3, 0)], {7})
    story.changes(item(4), mark(UPDATE, channel=9))
    apply(story, settings)
    assert (story.rows("item")[2:], channels_of(mariadb)) == ([(4, 0)], {7, 9})


def test_in_a_ring_a_tidb_is_told_the_origin_of_each_transaction(mariadb: MariaDBServer) -> None:
    variables = {**TIDB.variables, "tidb_cdc_write_source": "0"}
    tidb = TiDBStandIn(mariadb, replace(TIDB, variables=variables))
    settings = replace(tidb.downstream, loopback_control=True, channel_id=7, ring=(7, 8, 19))
    session = MySQLSession(settings)
    session.connect()
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int PRIMARY KEY)")
    for number, channel in enumerate((None, 8, 8, 19, 7)):
        session.begin()
        session.execute(f"INSERT INTO d.t VALUES ({number})")
        session.commit(channel)
    session.close()
    told = [each for each in tidb.seen.statements if "SESSION tidb_cdc_write_source" in each]
    assert [each.rpartition("=")[2] for each in told] == ["7", "8", "0", "7"]
    assert channels_of(mariadb) == {7, 8, 19}
    tidb.close()


def test_doctor_names_marks_of_clusters_that_are_not_in_the_ring(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = with_item(mariadb, tmp_path)
    settings = ring_of(story)
    apply(story, settings)
    assert [one.state for one in check_pipeline(settings, ("downstream",))] == [OK]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO retl._drainer_repl_mark VALUES (0, 8, 1, ''), (0, 5, 1, '')")
    *_, found = check_pipeline(settings, ("downstream",))
    assert found.state == WARN
    assert "marks of channels 5, 8" in found.text
