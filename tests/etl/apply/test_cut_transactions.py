"""Changes that are spread over very many tables go downstream in several transactions: each takes
the checkpoint to where an upstream transaction ends, and applying goes on from there.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.apply._adaptive_limits import AdaptiveLimits
from sluice.etl.changes.planning import BatchPayload
from sluice.etl.changes.steps import Step, from_batches, to_batches
from sluice.etl.downstream.sinks.mysql import MySQLSink
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import INSERT, SKIP, Override
from sluice.tidb.rows import encode_insert
from tests.etl.apply.test_apply_random import checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

COUNT = 420
TABLES = [table(100 + n, f"t{n}", "id int", "v int", primary="id") for n in range(COUNT)]


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    """Two changes in each transaction: of a table of its own and of the one before.

    Each window is one of them.
    """
    story = Story(mariadb, tmp_path)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS `d`")
        for each in TABLES:
            cursor.execute(f"CREATE TABLE `d`.`{each.name}` (`id` int primary key, `v` int)")
    story.apply()  # there is a checkpoint from here on
    for n, each in enumerate(TABLES):
        before = TABLES[n - 1]
        story.changes(
            (each, INSERT, encode_insert(each, {"id": n, "v": 1})),
            (before, INSERT, encode_insert(before, {"id": n, "v": 2})),
        )
    return story


def settings_for(story: Story, mode: str = "atomic") -> Settings:
    return Settings(
        Upstream("unused"), Relay(story.url), story.server.downstream, apply=Apply(mode, 2)
    )


def applied(story: Story, mode: str = "atomic") -> tuple[ApplySummary, list[Step]]:
    """The summary, and the steps that were prepared."""
    settings, found = settings_for(story, mode), list[Step]()
    prepare = local_preparer(settings)

    def prepared(batch: BatchPayload) -> Iterator[pa.RecordBatch]:
        steps = list(from_batches(prepare(batch)))
        found.extend(steps)
        yield from to_batches(iter(steps))

    return run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=prepared), found


def expected(n: int) -> list[tuple[Any, ...]]:
    return sorted([(n, 1), ((n + 1) % COUNT, 2)], key=repr)


def check_rows(story: Story) -> None:
    for n, each in enumerate(TABLES):
        assert story.rows(each.name) == expected(n), each.name


def transactions(steps: list[Step]) -> list[set[str]]:
    """The tables of each downstream transaction."""
    found: list[set[str]] = [set()]
    for step in steps:
        if step.kind == "commit":
            found.append(set())
        else:
            found[-1].add(step.table)
    return found[:-1]


@pytest.mark.slow
def test_a_downstream_transaction_has_few_of_very_many_tables(story: Story) -> None:
    summary, steps = applied(story)
    sizes = [len(tables) for tables in transactions(steps)]
    assert len(sizes) > 3
    assert max(sizes) <= 100
    assert (summary.changes, summary.rows, summary.batches) == (2 * COUNT, 2 * COUNT, 1)
    check_rows(story)


@pytest.mark.slow
def test_sessions_side_by_side_have_small_transactions_anyway(story: Story) -> None:
    _, steps = applied(story, "parallel")
    assert sum(step.kind == "commit" for step in steps) == 1
    check_rows(story)


@pytest.mark.slow
def test_a_process_killed_between_two_of_them_goes_on_at_the_last_one(
    story: Story, mariadb: MariaDBServer
) -> None:
    code = (
        "import itertools, os, signal, sys\nfrom sluice.etl.apply import run_apply\nfrom"
        " sluice.etl.downstream.sinks.mysql import MySQLSink\nfrom sluice.etl.settings import"
        " Apply, Downstream, Relay, Settings, Upstream\nfrom tests.etl.preparing import"
        " local_preparer\nurl, port, until = sys.argv[1], int(sys.argv[2]),"
        " int(sys.argv[3])\ncommits, commit = itertools.count(1), MySQLSink._commit\ndef"
        " committed(*given):\n    commit(*given)\n    if next(commits) == 2:\n       "
        " os.kill(os.getpid(), signal.SIGKILL)\nMySQLSink._commit = committed\nsettings ="
        " Settings(Upstream('unused'), Relay(url), Downstream('127.0.0.1', port),"
        " apply=Apply('atomic', 2))\nrun_apply(settings, until_ts=until, run_seconds=240,"
        " prepare=local_preparer(settings))\n"
    )
    root = str(Path(__file__).parents[3])
    first_ts = story._ts - 10 * COUNT
    places = []
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", code, story.url, str(mariadb.port), str(story._ts)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": root},
        )
        assert ended.returncode == -signal.SIGKILL
        with mariadb.connect() as connection:
            places.append(checkpoint(connection))
    assert first_ts < places[0] < places[1] < story._ts
    done = (places[1] - first_ts) // 10
    assert story.rows(TABLES[done - 2].name) == expected(done - 2)
    assert story.rows(TABLES[done].name) == []
    applied(story)
    check_rows(story)


def applied_while_decided(
    story: Story, monkeypatch: pytest.MonkeyPatch, override: Override
) -> ApplySummary:
    """The summary of applying, where an operator decides behind the second commit."""
    commit, commits = MySQLSink._commit, itertools.count(1)

    def committed(*given: Any) -> None:
        commit(*given)
        if next(commits) == 2:
            story._relay.overrides.add(override)

    monkeypatch.setattr(MySQLSink, "_commit", committed)
    return applied(story)[0]


def test_a_decision_that_was_used_before_something_came_in_between_is_noted(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prepared then begins behind it."""
    first_ts = story._ts - 10 * COUNT
    early, later = first_ts + 10 * 5, first_ts + 10 * 300
    story._relay.overrides.add(Override(early, SKIP, by="ann"))
    summary = applied_while_decided(story, monkeypatch, Override(later, SKIP, by="bob"))
    assert set(story._relay.overrides.used_ms()) == {early, later}
    assert sum(f"commit_ts {early}" in warning for warning in summary.warnings) == 1
    assert story.rows(TABLES[4].name) == [(5, 2)]
    assert story.rows(TABLES[299].name) == [(300, 2)]


@pytest.mark.slow
def test_a_decision_that_came_too_late_for_its_transaction_is_taken_back(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = story._ts - 10 * COUNT + 10 * 5
    summary = applied_while_decided(story, monkeypatch, Override(late, SKIP, by="ann"))
    assert story._relay.overrides.list() == []
    assert sum("too late" in warning for warning in summary.warnings) == 1
    check_rows(story)


def test_a_downstream_far_away_gets_as_few_transactions_as_there_can_be() -> None:
    size = AdaptiveLimits(Apply())
    assert size.cut_tables == 100
    size.observe([], 1.0, 0.02)
    assert size.cut_tables is None
    size.observe([], 1.0, 0.0002)
    assert size.cut_tables == 100
