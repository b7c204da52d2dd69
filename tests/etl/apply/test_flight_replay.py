"""A flight that was broken off, and what may have changed before it is flown again: decisions, and
how far windows reach.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import FlushDetail, Step
from sluice.etl.changes.write_plans import small_batches as few_changes
from sluice.etl.downstream import Checkpoint, CheckpointTable, MySQLSession
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import DELETE, INSERT, SKIP, UPDATE, Override
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from tests.etl.apply.test_apply_parallel import parallel_sink
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History
from tests.etl.story import Story, table
from tests.examples import examples

ITEM = table(11, "item", "id int", "name varchar(20)", "v int", primary="id", unique=("name",))


def item(i: int, v: int = 0) -> dict[str, Any]:
    return {"id": i, "name": f"n{i}", "v": v}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(
        ITEM, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20) unique, `v` int)"
    )
    story.insert(ITEM, *(item(i) for i in range(10)))
    story.apply()
    return story


def settings_of(story: Story, mode: str) -> Settings:
    return Settings(
        Upstream("unused"), Relay(story._url), story.server.downstream, apply=Apply(mode, 3, 10_000)
    )


def windows_after(story: Story, after: int) -> list[Any]:
    return [window for window in story._relay.windows(after) if window.hi > after]


def break_off(story: Story, after: int, ignored: frozenset[int] = frozenset()) -> None:
    """Everything after `after` in one flight, of which all is downstream but the checkpoint."""
    sink = parallel_sink(settings_of(story, "parallel"))
    sink.recover()
    described = BatchPayload.from_windows(windows_after(story, after))
    steps = prepare_steps(story._url, described, PrepareOptions("groups", 3, ignored_ts=ignored))
    sink.run([*(step for step in steps if step.kind != "commit"), Step(FlushDetail(), 0)])
    sink.close()


def go_on(story: Story, mode: str) -> None:
    chosen = settings_of(story, mode)
    run_apply(chosen, until_ts=story._ts, run_seconds=240, prepare=local_preparer(chosen))


def checkpoint_of(story: Story) -> Checkpoint:
    session = MySQLSession(story.server.downstream)
    session.connect()
    found = CheckpointTable(session, 7).load()
    session.close()
    assert found is not None
    return found


def several(story: Story) -> int:
    """A transaction that changes, moves, removes and makes rows; its commit_ts."""
    story.changes(
        (ITEM, UPDATE, encode_update(ITEM, item(1), item(1, 77))),
        (ITEM, UPDATE, encode_update(ITEM, item(2), item(22, 77))),
        (ITEM, DELETE, encode_delete(ITEM, item(3))),
        (ITEM, INSERT, encode_insert(ITEM, item(33, 77))),
        (ITEM, UPDATE, encode_update(ITEM, item(4), item(4, 77))),
    )
    return story._ts


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_a_transaction_that_is_skipped_after_its_flight_broke_off_is_taken_back_whole(
    story: Story, mode: str
) -> None:
    """Parts of it may be downstream: leaving it out of the replay alone would leave them there."""
    after = story._ts
    story.update(ITEM, item(5), item(5, 1))
    at = several(story)
    story.update(ITEM, item(4, 77), item(4, 78))  # its row was changed again: that stands
    story.insert(ITEM, item(50))
    break_off(story, after)
    assert (33, "n33", 77) in story.rows("item")
    story._relay.overrides.add(Override(at, SKIP, by="ann"))
    go_on(story, mode)
    changed = {4: 78, 5: 1}
    assert story.rows("item") == sorted(
        [(i, f"n{i}", changed.get(i, 0)) for i in [*range(10), 50]], key=repr
    )
    assert checkpoint_of(story) == Checkpoint(story._ts, checkpoint_of(story).schema_version)


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_several_transactions_of_one_row_are_taken_back_in_the_right_order(
    story: Story, mode: str
) -> None:
    after = story._ts
    skipped = []
    for old, new in ((0, 1), (1, 2), (2, 3)):
        story.update(ITEM, item(1, old), item(1, new))
        skipped.append(story._ts)
    story.delete(ITEM, item(1, 3))
    skipped.append(story._ts)
    story.insert(ITEM, item(60))
    skipped.append(story._ts)
    story.update(ITEM, item(60), item(60, 6))
    skipped.append(story._ts)
    break_off(story, after)
    for at in skipped:
        story._relay.overrides.add(Override(at, SKIP))
    go_on(story, mode)
    assert story.rows("item") == [(i, f"n{i}", 0) for i in range(10)]


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_what_was_left_out_before_the_flight_began_is_not_touched_when_it_is_flown_again(
    story: Story, mode: str
) -> None:
    """It never was downstream, and its rows may be others there."""
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE d.item SET v = 99 WHERE id IN (1, 4)")
        cursor.execute("INSERT INTO d.item VALUES (33, 'n33', 99)")
    after = story._ts
    story.update(ITEM, item(5), item(5, 1))
    at = several(story)
    story._relay.overrides.add(Override(at, SKIP))
    break_off(story, after, frozenset({at}))
    go_on(story, mode)
    values = {1: 99, 4: 99, 5: 1, 33: 99}
    assert story.rows("item") == sorted(
        [(i, f"n{i}", values.get(i, 0)) for i in [*range(10), 33]], key=repr
    )


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_a_flight_of_which_less_is_landed_now_is_written_again_when_all_of_it_is(
    story: Story, mode: str
) -> None:
    """Windows may have been removed and be landed again, as an error message about a damaged one
    tells.
    """
    after = story._ts
    for i in range(60, 64):
        story.insert(ITEM, item(i))
    middle, until = story._ts - 20, story._ts
    break_off(story, after)
    chosen = settings_of(story, mode)
    prepare = local_preparer(chosen)
    hidden = {
        window.lo: (story._relay._storage._root / window.path)
        for window in windows_after(story, middle)
    }  # type: ignore[attr-defined]
    for path in hidden.values():
        path.rename(path.with_name("." + path.name))
    run_apply(chosen, until_ts=middle, run_seconds=1, prepare=prepare)
    found = checkpoint_of(story)
    assert (found.commit_ts, found.consistent) == (after, False)
    assert found.in_flight is not None and found.in_flight.until == until
    for path in hidden.values():
        path.with_name("." + path.name).rename(path)
    story.insert(ITEM, item(70))
    summary = run_apply(chosen, until_ts=story._ts, run_seconds=240, prepare=prepare)
    assert summary.retries == 0
    assert story.rows("item") == sorted(
        [(i, f"n{i}", 0) for i in [*range(10), *range(60, 64), 70]], key=repr
    )
    assert checkpoint_of(story).consistent


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_rows_that_came_and_went_in_a_flight_leave_nothing_whoever_finishes_it(
    story: Story, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds of a flight a row may be downstream that is in no net effect."""
    monkeypatch.setattr(few_changes, "MAX_SMALL_CHANGES", 0)  # fewer would all be one session's
    after = story._ts
    story.insert(ITEM, item(20) | {"name": "a"})
    story.update(ITEM, item(2), item(2) | {"name": "c"})
    story.update(ITEM, item(20) | {"name": "a"}, item(20) | {"name": "n2"})
    story.delete(ITEM, item(20) | {"name": "n2"})
    sink = parallel_sink(settings_of(story, "parallel"))
    sink.recover()
    described = BatchPayload.from_windows(windows_after(story, after))
    steps = list(prepare_steps(story._url, described, PrepareOptions("groups", 3)))
    first = next(n for n, step in enumerate(steps) if step.kind == "flush")
    sink.run(steps[: first + 1])
    sink.close()
    assert any(row[0] == 20 for row in story.rows("item"))
    go_on(story, mode)
    assert story.rows("item") == sorted(
        [(i, "c" if i == 2 else f"n{i}", 0) for i in range(10)], key=repr
    )


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_a_skip_that_is_taken_back_after_the_flight_broke_off_counts_no_more(
    story: Story, mode: str
) -> None:
    after = story._ts
    at = several(story)
    story.update(ITEM, item(5), item(5, 1))
    break_off(story, after, frozenset({at}))
    go_on(story, mode)
    values = {1: 77, 4: 77, 5: 1, 22: 77, 33: 77}
    assert story.rows("item") == sorted(
        [(i, f"n{i}", values.get(i, 0)) for i in [0, 1, 22, 33, *range(4, 10)]], key=repr
    )


def test_a_flight_is_not_finished_under_other_rules_than_it_was_begun_under(story: Story) -> None:
    after = story._ts
    story.update(ITEM, item(5), item(5, 1))
    break_off(story, after)
    other = replace(settings_of(story, "atomic"), filters=Filter(ignored_schemas=("d",)))
    with pytest.raises(ApplyError, match=r"\[filter\].*former rules"):
        run_apply(other, until_ts=story._ts, run_seconds=240, prepare=local_preparer(other))
    go_on(story, "atomic")
    assert (5, "n5", 1) in story.rows("item")


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.integers(0, 2**32),
    st.integers(1, 25),
    st.integers(1, 25),
    st.floats(0, 1),
    st.sampled_from(["parallel", "atomic"]),
)
def test_what_is_skipped_after_a_flight_broke_off_anywhere_leaves_no_trace(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    kept: int,
    skipped: int,
    share: float,
    mode: str,
) -> None:
    history = History(seed)
    history.grow(kept)
    expected = {name: history.expected(name) for name in TABLES}
    before = len(history.transactions)
    history.grow(skipped)
    later = [ts for ts, _ in history.transactions[before:]]
    url = f"file://{tmp_path_factory.mktemp('flight')}/relay"
    relay = history.land(url, [7])
    fresh(mariadb).close()
    chosen = Settings(
        Upstream("unused"), Relay(url), mariadb.downstream, apply=Apply(mode, 3, 10_000)
    )
    broken = parallel_sink(chosen)
    broken.recover()
    first = relay.first()
    assert first is not None
    described = BatchPayload.from_windows(relay.windows(first.lo))
    begun = [
        step
        for step in prepare_steps(url, described, PrepareOptions("groups", 3))
        if step.kind != "commit"
    ]
    broken.run([*begun[: max(1, round(share * len(begun)))], Step(FlushDetail(), 0)])
    broken.close()
    for ts in later:
        relay.overrides.add(Override(ts, SKIP))
    run_apply(chosen, until_ts=relay.last().hi, run_seconds=240, prepare=local_preparer(chosen))
    with mariadb.connect() as connection:
        for name in TABLES:
            assert rows_of(connection, name) == expected[name], name


def test_what_cannot_even_be_decoded_begins_no_flight_and_can_be_skipped(story: Story) -> None:
    heap = story.create(
        table(12, "other", "id int", "v int", primary="id"),
        "CREATE TABLE `other` (`id` int primary key, `v` int)",
    )
    go_on(story, "parallel")
    story.insert(ITEM, item(50))
    story.changes(
        (ITEM, UPDATE, encode_update(ITEM, item(1), item(1, 77))),
        (heap, INSERT, b"\x03\x80\x00garbage"),
    )
    at = story._ts
    story.insert(ITEM, item(51))
    with pytest.raises(ApplyError, match=f"commit_ts {at}"):
        go_on(story, "parallel")
    assert checkpoint_of(story).in_flight is None
    story._relay.overrides.add(Override(at, SKIP))
    go_on(story, "parallel")
    assert story.rows("item") == sorted([(i, f"n{i}", 0) for i in [*range(10), 50, 51]], key=repr)
