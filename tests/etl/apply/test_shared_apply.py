"""Transactions and DDL of one commit timestamp arrive downstream once each, whatever breaks off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.etl import operate
from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import commit_ts_of, list_files, read_file
from sluice.etl.changes.steps import ScopedDdl, Step
from sluice.etl.downstream import DownstreamError
from sluice.etl.downstream.ddl import DdlExecutor
from sluice.etl.downstream.sinks._idempotent_ddl import IdempotentDdl
from sluice.etl.settings import Apply, Downstream, File, Relay, Settings, Upstream
from sluice.tidb import pb
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.shared_story import SharedStory
from tests.etl.story import column, table, wider

ONE = table(11, "one", "id int", "v int", primary="id", unique=("v",))
KEYLESS = table(12, "keyless", "a int", "b int")


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> SharedStory:
    story = SharedStory(mariadb, tmp_path)
    story.create(ONE, "CREATE TABLE `one` (`id` int primary key, `v` int unique)")
    story.create(KEYLESS, "CREATE TABLE `keyless` (`a` int, `b` int)")
    story.insert(ONE, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    return story


def settings_for(story: SharedStory, mode: str) -> Settings:
    downstream = story.server.downstream
    return Settings(Upstream("unused"), Relay(story.url), downstream, apply=Apply(mode, 3, 10_000))


def bring_up(story: SharedStory, mode: str) -> None:
    settings = settings_for(story, mode)
    run_apply(settings, until_ts=story.now, run_seconds=240, prepare=local_preparer(settings))


def tell(story: SharedStory) -> None:
    """Three transactions of one timestamp, each also repeated as if by another pump."""
    with story.together(again=True):
        story.update(ONE, {"id": 1, "v": 1}, {"id": 1, "v": 10})
        story.insert(ONE, {"id": 3, "v": 3})
        story.insert(KEYLESS, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    story.update(ONE, {"id": 1, "v": 10}, {"id": 1, "v": 11})


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_rows_of_each_of_them_arrive_once(story: SharedStory, mode: str) -> None:
    tell(story)
    bring_up(story, mode)
    assert story.rows("one") == [(1, 11), (2, 2), (3, 3)]
    assert story.rows("keyless") == [(1, 1), (1, 1)]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize(
    "breaks_off", ["", "before the marker", "behind the marker", "behind the statement"]
)
def test_rows_at_the_timestamp_of_ddl_come_before_it_and_once_whatever_becomes_of_it(
    story: SharedStory, mode: str, breaks_off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = wider(ONE, column(3, "w int"))
    with story.together():
        story.update(ONE, {"id": 1, "v": 1}, {"id": 1, "v": 10})
        story.insert(KEYLESS, {"a": 1, "b": 1})
        story.statement(5, "ALTER TABLE `one` ADD COLUMN `w` int", grown)
    story.insert(grown, {"id": 3, "v": 3, "w": 3})
    failures = break_off(breaks_off, monkeypatch)
    bring_up(story, mode)
    assert not failures
    assert story.rows("one") == [(1, 10, None), (2, 2, None), (3, 3, 3)]
    assert story.rows("keyless") == [(1, 1)]


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize(
    "breaks_off", ["", "before the marker", "behind the marker", "behind the statement"]
)
def test_two_ddl_of_one_timestamp_are_both_executed_once(
    story: SharedStory, mode: str, breaks_off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, other = wider(ONE, column(3, "w int")), wider(KEYLESS, column(3, "c int"))
    with story.together():
        story.insert(KEYLESS, {"a": 1, "b": 1})
        story.statement(5, "ALTER TABLE `keyless` ADD COLUMN `c` int", other)
        story.statement(5, "ALTER TABLE `one` ADD COLUMN `w` int", wide)
    failures = break_off(breaks_off, monkeypatch)
    bring_up(story, mode)
    assert not failures
    assert story.rows("one") == [(1, 1, None), (2, 2, None)]
    assert story.rows("keyless") == [(1, 1, None)]


def break_off(where: str, monkeypatch: pytest.MonkeyPatch) -> list[DownstreamError]:
    """Lose the connection once at ADD COLUMN of the table `one`; what is yet to be raised."""
    failures = [DownstreamError(0, "gone")] if where else []
    has_run, execute = IdempotentDdl._has_run, DdlExecutor.execute

    def fail(ddl: ScopedDdl) -> None:
        if ddl.type == 5 and "`one`" in ddl.query and failures:
            raise failures.pop()

    def before_marker(self: IdempotentDdl, step: Step, confirm: Any) -> bool:
        if where == "before the marker":
            fail(step.detail_of(ScopedDdl))
        return has_run(self, step, confirm)

    def at_statement(self: DdlExecutor, ddl: ScopedDdl) -> list[str]:
        if where == "behind the marker":
            fail(ddl)
        done = execute(self, ddl)
        if where == "behind the statement":
            fail(ddl)
        return done

    monkeypatch.setattr(IdempotentDdl, "_has_run", before_marker)
    monkeypatch.setattr(DdlExecutor, "execute", at_statement)
    return failures


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_one_of_them_is_skipped_and_the_others_arrive(story: SharedStory, mode: str) -> None:
    tell(story)
    story.delete(ONE, {"id": 3, "v": 3})
    first, second = story.now - 41, story.now - 31
    settings = settings_for(story, mode)
    with pytest.raises(operate.OperateError, match=f"{first} .rows., {second} .rows."):
        operate.skip_transaction(settings, story.now - 20)
    operate.skip_transaction(settings, story.now - 20, start_ts=second)
    operate.skip_transaction(settings, story.now)
    bring_up(story, mode)
    assert story.rows("one") == [(1, 11), (2, 2)]
    assert story.rows("keyless") == [(1, 1), (1, 1)]
    used = {
        one["commit_ts"]: one.get("start_ts")
        for one in operate.list_overrides(settings)
        if one["used_ms"]
    }
    assert used == {story.now - 20: second, story.now: None}


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_skipping_ddl_leaves_the_rows_of_its_timestamp(story: SharedStory, mode: str) -> None:
    with story.together():
        story.insert(KEYLESS, {"a": 1, "b": 1})
        story.statement(5, "ALTER TABLE `one` ADD COLUMN `w` int", wider(ONE, column(3, "w int")))
    settings = settings_for(story, mode)
    with pytest.raises(operate.OperateError, match="several"):
        operate.skip_transaction(settings, story.now)
    operate.skip_ddl(settings, story.now)
    bring_up(story, mode)
    assert story.rows("one") == [(1, 1), (2, 2)]
    assert story.rows("keyless") == [(1, 1)]


def test_in_binlog_files_they_are_one_record(story: SharedStory, tmp_path: Path) -> None:
    tell(story)
    folder = tmp_path / "files"
    settings = Settings(
        Upstream("unused"), Relay(story.url), Downstream(type="file"), file=File(dir=str(folder))
    )
    run_apply(settings, until_ts=story.now, run_seconds=240, prepare=local_preparer(settings))
    records = [message for path in list_files(folder) for _, message in read_file(path)]
    shared = [bytes(message) for message in records if commit_ts_of(message) == story.now - 10]
    assert len(shared) == 1
    events = pb.file_binlog.Binlog.FromString(shared[0]).dml_data.events
    assert [(event.table_name, event.tp) for event in events] == [
        ("one", 1),
        ("one", 0),
        *[("keyless", 0)] * 2,
    ]
