"""Operators are answered when it is known what becomes of their override, and the answer stays
true.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.apply import _overrides, run_apply
from sluice.etl.downstream import MySQLSession
from sluice.etl.operate import OperateError
from sluice.etl.settings import Apply, Downstream, File, Relay, Settings, Upstream
from sluice.relay import SKIP, Override, Overrides
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import ITEM, Story, column, table, with_item

WIDE = table(11, "item", "id int", "v int", column(3, "w int"), primary="id")
SINKS = pytest.mark.parametrize("sink", ["atomic", "parallel", "file"])


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return with_item(mariadb, tmp_path)


def settings_of(story: Story, tmp_path: Path, sink: str) -> Settings:
    if sink == "file":
        folder = File(dir=str(tmp_path / "files"))
        return Settings(Upstream("unused"), Relay(story.url), Downstream(type="file"), file=folder)
    return Settings(
        Upstream("unused"), Relay(story.url), story.server.downstream, apply=Apply(sink, 2, 10_000)
    )


def go_on(story: Story, settings: Settings) -> list[str]:
    prepare = local_preparer(settings)
    return run_apply(settings, until_ts=story._ts, run_seconds=60, prepare=prepare).warnings


@SINKS
def test_a_override_that_is_used_at_once_was_not_too_late(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    settings = settings_of(story, tmp_path, sink)
    go_on(story, settings)
    story.insert(ITEM, {"id": 2, "v": 2})
    at, add = story._ts, Overrides.add

    def and_applied(self: Overrides, override: Override) -> None:
        add(self, override)
        go_on(story, settings)

    with monkeypatch.context() as patch:
        patch.setattr(Overrides, "add", and_applied)
        assert "is left out" in operate.skip_transaction(settings, at)
    if sink != "file":
        assert story.rows("item") == [(1, 1)]
    assert set(story._relay.overrides.used_ms()) == {at}


@SINKS
def test_a_override_that_is_used_cannot_be_taken_back(
    story: Story, tmp_path: Path, sink: str
) -> None:
    settings = settings_of(story, tmp_path, sink)
    at = story._ts
    operate.skip_transaction(settings, at)
    operate.remove_override(settings, at)
    assert operate.list_overrides(settings) == []
    operate.skip_transaction(settings, at)
    go_on(story, settings)
    with pytest.raises(OperateError, match="is used"):
        operate.remove_override(settings, at)
    assert [each["commit_ts"] for each in operate.list_overrides(settings)] == [at]


class _Died(BaseException):
    pass


@SINKS
def test_what_a_process_that_died_behind_its_commit_used_is_known_to_the_next_one(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    settings, relay = settings_of(story, tmp_path, sink), story._relay
    go_on(story, settings)
    story.insert(ITEM, {"id": 2, "v": 2})
    used = story._ts
    story.insert(ITEM, {"id": 3, "v": 3})
    operate.skip_transaction(settings, used)
    late, settle = story._ts, _overrides.settle_overrides

    def died(of: object, through_ts: int) -> list[str]:
        if through_ts < late:
            return settle(relay, through_ts)
        raise _Died

    with monkeypatch.context() as patch:
        patch.setattr(_overrides, "settle_overrides", died)
        with pytest.raises(_Died):
            go_on(story, settings)
    relay.overrides.add(Override(late, SKIP))  # an operator who died, too
    assert relay.overrides.used_ms() == {}
    story.insert(ITEM, {"id": 4, "v": 4})
    said = "\n".join(go_on(story, settings))
    assert (
        f"commit_ts {used}: skipped" in said
        and f"commit_ts {late}: skipped" in said
        and "too late" in said
    )
    assert [each.commit_ts for each in relay.overrides.list()] == [used]
    assert set(relay.overrides.used_ms()) == {used}
    if sink != "file":
        assert story.rows("item") == [(1, 1), (3, 3), (4, 4)]


def test_a_ddl_that_is_replaced_by_nothing_waits_for_operators_as_any_other(
    story: Story, tmp_path: Path
) -> None:
    settings = settings_of(story, tmp_path, "atomic")
    go_on(story, settings)
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", WIDE)
    at = story._ts
    operate.replace_ddl(settings, at, [])
    go_on(story, settings)
    assert story.rows("item") == [(1, 1)]
    assert set(story._relay.overrides.used_ms()) == {at}


def test_what_cannot_be_known_is_not_promised(story: Story, tmp_path: Path) -> None:
    settings = settings_of(story, tmp_path, "atomic")
    gone = Settings(settings.upstream, settings.relay, Downstream("127.0.0.1", 1, "sluice"))
    at = story._ts
    assert "is unknown now" in operate.skip_transaction(gone, at)
    assert "is unknown now" in operate.run_until(gone, at)
    with pytest.raises(OperateError, match="is unknown now"):
        operate.remove_override(gone, at)
    operate.resume(settings)
    go_on(story, settings)
    assert story.rows("item") == []
    assert set(story._relay.overrides.used_ms()) == {at}


@pytest.mark.parametrize("sink", ["atomic", "parallel"])
def test_whoever_runs_it_knows_while_a_batch_is_written(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    settings = settings_of(story, tmp_path, sink)
    writing, seen = threading.Lock(), []
    commit = MySQLSession.commit

    def seen_committing(self: MySQLSession, channel: int | None = None) -> None:
        if self.before_write is not None and self.is_connected:
            seen.append(writing.locked())
        commit(self, channel)

    monkeypatch.setattr(MySQLSession, "commit", seen_committing)
    prepare = local_preparer(settings)
    run_apply(settings, until_ts=story._ts, run_seconds=60, prepare=prepare, writing=writing)
    assert seen[0] is False and seen[-1] is True  # connecting, and the last batch
    assert not writing.locked()
