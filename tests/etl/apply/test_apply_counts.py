"""Apply counts what went downstream, once, through errors and from process to process."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.measures import CounterStore
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

A = table(11, "a", "id int", "v int", primary="id")
B = table(12, "b", "id int", "v int", primary="id")


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(A, "CREATE TABLE `a` (`id` int primary key, `v` int)")
    return story


def measures(story: Story) -> CounterStore:
    return CounterStore(RelayLog.open(story.url), downstream_name(story.server.downstream))


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_changes_are_counted_by_table_and_kind_as_upstream_made_them_from_run_to_run(
    story: Story, mode: str
) -> None:
    settings = Settings(
        Upstream("unused"), Relay(story.url), story.server.downstream, apply=Apply(mode=mode)
    )

    def apply() -> None:
        run_apply(settings, until_ts=story._ts, run_seconds=60, prepare=local_preparer(settings))

    story.insert(A, first := {"id": 1, "v": 1}, {"id": 2, "v": 1})
    # no trace of it is downstream in the end: the row goes
    changed = story.update(A, first, {"v": 2})
    story.delete(A, changed)
    apply()
    story.create(B, "CREATE TABLE `b` (`id` int primary key, `v` int)")
    story.insert(B, {"id": 1, "v": 1})
    apply()
    found = measures(story)
    tables = {name: (one.inserts, one.updates, one.deletes) for name, one in found.tables().items()}
    assert tables == {"d.a": (2, 1, 1), "d.b": (1, 0, 0)}
    assert found.tables()["d.b"].last_commit_ts == story._ts
    totals = found.totals().apply
    assert totals.at_ts == story._ts
    counts = totals.counts
    assert {
        name: counts[name]
        for name in ("inserts", "updates", "deletes", "changes", "ddls", "transactions")
    } == {
        "inserts": 3,
        "updates": 1,
        "deletes": 1,
        "changes": 5,
        "ddls": 3,
        "transactions": 7,
    }
    assert totals.durations["execute"].count == counts["batches"]


def test_what_was_committed_before_an_error_in_the_same_batch_is_counted_and_only_once(
    story: Story,
) -> None:
    story.insert(A, {"id": 1, "v": 1})
    story.create(B, "CREATE TABLE `b` (`id` int primary key, `v` int)")
    story.delete(A, {"id": 9, "v": 9})
    settings = Settings(Upstream("unused"), Relay(story.url), story.server.downstream)
    for _ in range(2):
        with pytest.raises(ApplyError, match="missing: "):
            run_apply(
                settings, until_ts=story._ts, run_seconds=60, prepare=local_preparer(settings)
            )
    counts = measures(story).totals().apply.counts
    assert counts["inserts"] == 1
    assert counts["error.ApplyError"] == 2
    assert measures(story).tables()["d.a"].inserts == 1


def test_a_place_that_takes_no_measures_stops_nothing(story: Story, tmp_path: Path) -> None:
    story.insert(A, {"id": 1, "v": 1})
    (tmp_path / "relay" / "measures").write_text("no folder")
    settings = Settings(Upstream("unused"), Relay(story.url), story.server.downstream)
    run_apply(settings, until_ts=story._ts, run_seconds=60, prepare=local_preparer(settings))
    assert story.rows("a") == [(1, 1)]
