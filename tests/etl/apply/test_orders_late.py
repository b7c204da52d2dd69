"""An order counts until the commit: it is followed by a batch that is prepared or being written, or
it is refused at once by name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl import operate
from sluice.etl.apply import run_apply
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.operate import OperateError
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import Control
from tests.etl.apply.test_flight_replay import break_off
from tests.etl.downstream.ddl.test_ddl_alone import running
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, column, table

ITEM = table(11, "item", "id int", "v int", primary="id")
WIDE = table(11, "item", "id int", "v int", column(3, "w int"), primary="id")
MODES = pytest.mark.parametrize("mode", ["atomic", "parallel"])


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(ITEM, {"id": 1, "v": 1})
    story.apply()
    return story


def settings_of(story: Story, mode: str) -> Settings:
    return Settings(
        Upstream("unused"), Relay(story._url), story.server.downstream, apply=Apply(mode, 2, 10_000)
    )


def go_on(story: Story, mode: str, run_seconds: float = 30) -> None:
    chosen = settings_of(story, mode)
    run_apply(chosen, until_ts=story._ts, run_seconds=run_seconds, prepare=local_preparer(chosen))


def place(settings: Settings) -> Checkpoint:
    found = read_checkpoint(settings.target, 7)
    assert found is not None
    return found


@contextlib.contextmanager
def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    order: Callable[[], Any],
    given: Callable[[], bool],
    when: Callable[[], bool] = lambda: True,
) -> Iterator[list[Any]]:
    """When a session gets to `method`, an operator gives an order, which is `given` before that
    goes on. What came of the order.
    """
    came: list[Any] = []
    threads: list[threading.Thread] = []
    call = getattr(MySQLSession, method)

    def give() -> None:
        try:
            came.append(order())
        except OperateError as error:
            came.append(error)

    def patched(self: MySQLSession, *args: Any, **more: Any) -> Any:
        if not threads and self.before_write is not None and when():
            threads.append(threading.Thread(target=give))
            threads[0].start()
            deadline = time.monotonic() + 60
            while not given() and time.monotonic() < deadline:
                time.sleep(0.005)
        return call(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MySQLSession, method, patched)
        yield came
    for thread in threads:
        thread.join(60)
    assert threads and came


def test_a_point_to_stop_at_is_kept_by_the_batch_that_is_being_written(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.insert(ITEM, {"id": 2, "v": 2})
    stop = story._ts
    story.delete(ITEM, {"id": 1, "v": 1})
    settings, relay = settings_of(story, "atomic"), story._relay
    with meanwhile(
        monkeypatch,
        "execute_pipelined",
        lambda: operate.run_until(settings, stop),
        lambda: relay.control().apply_until_ts == stop,
    ) as came:
        go_on(story, "atomic", 2)
    assert "goes to" in came[0]
    assert story.rows("item") == [(1, 1), (2, 2)]
    assert place(settings).commit_ts == stop
    operate.resume(settings)
    go_on(story, "atomic")
    assert story.rows("item") == [(2, 2)]


@MODES
def test_nothing_is_committed_after_a_pause_that_came_while_the_batch_was_prepared(
    story: Story, mode: str
) -> None:
    story.delete(ITEM, {"id": 1, "v": 1})
    settings, relay = settings_of(story, mode), story._relay
    prepare = local_preparer(settings)

    def paused(windows: Any) -> Any:
        relay.change_control(lambda _: Control(apply_paused=True))
        yield from prepare(windows)

    run_apply(settings, until_ts=story._ts, run_seconds=1, prepare=paused)
    assert story.rows("item") == [(1, 1)]
    assert place(settings).commit_ts < story._ts
    operate.resume(settings)
    go_on(story, mode)
    assert story.rows("item") == []


def test_a_ddl_does_not_begin_after_a_pause(story: Story) -> None:
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", WIDE)
    settings, relay = settings_of(story, "atomic"), story._relay
    prepare = local_preparer(settings)

    def paused(windows: Any) -> Any:
        relay.change_control(lambda _: Control(apply_paused=True))
        yield from prepare(windows)

    run_apply(settings, until_ts=story._ts, run_seconds=1, prepare=paused)
    assert story.rows("item") == [(1, 1)]
    assert place(settings).pending is None


def test_a_skip_that_comes_during_the_commit_is_refused_and_not_kept(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has asked for decisions already, and sends the COMMIT."""
    story.insert(ITEM, {"id": 2, "v": 2})
    settings, relay, at = settings_of(story, "atomic"), story._relay, story._ts
    loaded: list[bool] = []
    send = MySQLSession.execute_pipelined
    monkeypatch.setattr(
        MySQLSession,
        "execute_pipelined",
        lambda self, orders: (loaded.append(True), send(self, orders))[1],
    )
    skip = lambda: operate.skip_transaction(settings, at)  # noqa: E731
    with meanwhile(
        monkeypatch, "commit", skip, lambda: bool(relay.overrides.list()), lambda: bool(loaded)
    ) as came:
        go_on(story, "atomic")
    assert "too late" in str(came[0])
    assert story.rows("item") == [(1, 1), (2, 2)]
    assert relay.overrides.list() == []


def test_a_point_inside_a_flight_is_refused_and_nothing_is_asked_for(story: Story) -> None:
    after = story._ts
    story.insert(ITEM, {"id": 2, "v": 2})
    middle = story._ts
    story.insert(ITEM, {"id": 3, "v": 3})
    break_off(story, after)
    settings = settings_of(story, "parallel")
    with pytest.raises(OperateError, match=f"several sessions .*it can at {story._ts}"):
        operate.run_until(settings, middle)
    assert story._relay.control() == Control()
    operate.run_until(settings, story._ts)


def test_a_ddl_that_is_being_executed_cannot_be_skipped_any_more(
    story: Story, mariadb: MariaDBServer
) -> None:
    story.statement(5, "ALTER TABLE `item` ADD COLUMN `w` int", WIDE)
    settings, at = settings_of(story, "atomic"), story._ts
    with mariadb.connect() as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM d.item")  # the statement waits for this one
        thread = threading.Thread(target=lambda: go_on(story, "atomic"))
        thread.start()
        deadline = time.monotonic() + 60
        while not running(mariadb, "ADD COLUMN") and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(OperateError, match=r"too late.*being executed.*ADD COLUMN"):
            operate.skip_ddl(settings, at)
        with pytest.raises(OperateError, match="is begun"):
            operate.run_until(settings, at - 1)
    thread.join(60)
    assert story._relay.overrides.list() == []
    assert story.rows("item") == [(1, 1, None)]
