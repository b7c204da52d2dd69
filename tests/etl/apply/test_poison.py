"""A transaction that can't be applied stops the pipeline with its name, and each of the ways out
that the error tells works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.etl.spark.errors import WorkerError
from sluice.relay import INSERT, SKIP, Override
from sluice.relay.measures import RefusalHistory
from sluice.tidb.rows import encode_insert
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

ITEM = table(11, "item", "id int", "name varchar(20)", "v int", primary="id", unique=("name",))
HEAP = table(12, "heap", "a int", "b varchar(10)")


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(
        ITEM, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20) unique, `v` int)"
    )
    story.create(HEAP, "CREATE TABLE `heap` (`a` int, `b` varchar(10))")
    story.insert(ITEM, *({"id": i, "name": f"n{i}", "v": i} for i in range(10)))
    story.apply()
    return story


def item(i: int, v: int = 0) -> dict[str, Any]:
    return {"id": i, "name": f"n{i}", "v": v}


def run(story: Story, statement: str) -> None:
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def traffic(story: Story, poison: Callable[[], None], around: int = 20) -> int:
    """Transactions before and after a poisoned one; its commit_ts."""
    for i in range(100, 100 + around):
        story.insert(ITEM, item(i))
    poison()
    at = story._ts
    for i in range(200, 200 + around):
        story.insert(ITEM, item(i))
    return at


def fails(story: Story, commit_ts: int, *words: str) -> str:
    """Applying fails with an error that names the commit, has `words` and the command to type."""
    with pytest.raises(ApplyError) as caught:
        story.apply()
    text = str(caught.value)
    for word in (f"at commit_ts {commit_ts}", f"`sluice txn skip {commit_ts}`", *words):
        assert word in text, text
    assert max(map(len, re.findall(r"\d{12,}", text))) <= 20
    return text


def skip(story: Story, commit_ts: int) -> None:
    story._relay.overrides.add(Override(commit_ts, SKIP, by="ann", why="poisoned"))


def ids(story: Story) -> set[int]:
    return {row[0] for row in story.rows("item", "id")}


EVERYTHING = set(range(10)) | set(range(100, 120)) | set(range(200, 220))


def test_a_row_that_is_missing_downstream_is_named_and_skipping_its_transaction_goes_on(
    story: Story,
) -> None:
    run(story, "DELETE FROM d.item WHERE id = 5")
    at = traffic(story, lambda: story.delete(ITEM, item(3, 3), item(5, 5)))
    fails(story, at, "table d.item", "key id=5", "delete", "missing")
    (refused,) = RefusalHistory(story._relay).since(0)
    assert refused.commit_ts == at and "table d.item, key id=5" in refused.text
    assert 3 in ids(story)
    skip(story, at)
    summary = story.apply()
    assert ids(story) == EVERYTHING - {5}  # 3 was in the skipped transaction too
    assert any(str(at) in line and "ann" in line for line in summary.warnings)
    assert set(story._relay.overrides.used_ms()) == {at}


def test_after_the_row_is_put_back_by_hand_the_next_attempt_goes_on(story: Story) -> None:
    run(story, "DELETE FROM d.item WHERE id = 5")
    at = traffic(story, lambda: story.delete(ITEM, item(3, 3), item(5, 5)))
    fails(story, at, "key id=5")
    run(story, "INSERT INTO d.item VALUES (5, 'n5', 5)")
    story.apply()
    assert ids(story) == EVERYTHING - {3, 5}


def test_an_update_of_a_missing_row_is_named(story: Story) -> None:
    run(story, "DELETE FROM d.item WHERE id = 7")
    at = traffic(story, lambda: story.changes(*(_update(i) for i in (6, 7, 8))))
    fails(story, at, "key id=7", "update")


def _update(i: int) -> tuple[Table, int, bytes]:
    from sluice.relay import UPDATE
    from sluice.tidb.rows import encode_update

    return ITEM, UPDATE, encode_update(ITEM, item(i, i), item(i, i + 1000))


@pytest.mark.parametrize(
    ("there", "said"),
    [("(205, 'other', 1)", "key id=205"), ("(999, 'n205', 1)", "n205")],
    ids=["primary key", "unique key"],
)
def test_a_key_that_is_there_already_is_named(story: Story, there: str, said: str) -> None:
    run(story, f"INSERT INTO d.item VALUES {there}")
    traffic(story, lambda: story.insert(ITEM, item(50)))
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM d.item WHERE id IN (205, 999)")
        (there_id,) = cursor.fetchone()
    at = next(
        int(row["commit_ts"])
        for row in story._relay.read(story._relay.windows(0)).to_pylist()
        if row["kind"] == INSERT and row["row"] == encode_insert(ITEM, item(205))
    )
    fails(story, at, "key id=205", said)
    run(story, f"DELETE FROM d.item WHERE id = {there_id}")
    story.apply()
    assert ids(story) == EVERYTHING | {50}


@pytest.mark.parametrize(
    ("trap", "remove", "said"),
    [
        (
            (
                "CREATE TRIGGER d.guard BEFORE INSERT ON d.item FOR EACH ROW IF NEW.v > 500 THEN"
                " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'guarded'; END IF"
            ),
            "DROP TRIGGER d.guard",
            "guarded",
        ),
        ("ALTER TABLE d.item MODIFY v tinyint", "ALTER TABLE d.item MODIFY v int", "Out of range"),
    ],
    ids=["trigger", "value too large"],
)
def test_a_value_that_the_downstream_refuses_is_named_and_both_ways_out_work(
    story: Story, trap: str, remove: str, said: str
) -> None:
    run(story, trap)
    first = traffic(story, lambda: story.insert(ITEM, item(50), item(51, 1000), item(52)))
    fails(story, first, "key id=51", "insert", said)
    skip(story, first)
    story.apply()
    assert ids(story) == EVERYTHING
    story.insert(ITEM, item(60), item(61, 2000))
    fails(story, story._ts, "key id=61", said)
    run(story, remove)
    story.apply()
    assert ids(story) == EVERYTHING | {60, 61}


def test_a_row_without_a_key_that_is_missing_is_named_by_its_row_id(story: Story) -> None:
    story.insert(HEAP, {"a": 1, "b": "x", "_tidb_rowid": 77}, {"a": 2, "b": "y", "_tidb_rowid": 78})
    story.apply()
    run(story, "DELETE FROM d.heap WHERE a = 2")
    at = traffic(story, lambda: story.delete(HEAP, {"a": 2, "b": "y", "_tidb_rowid": 78}))
    fails(story, at, "table d.heap", "_tidb_rowid=78")


def test_a_row_that_does_not_fit_its_schema_is_named_and_skipping_it_goes_on(story: Story) -> None:
    at = traffic(
        story,
        lambda: story.changes(
            (ITEM, INSERT, encode_insert(ITEM, item(50))), (ITEM, INSERT, b"\x03\x80\xff\xff")
        ),
    )
    fails(story, at, "table d.item", "insert")
    assert ids(story) == set(range(10))
    skip(story, at)
    story.apply()
    assert ids(story) == EVERYTHING


def test_a_row_that_a_spark_worker_could_not_decode_is_named_too(story: Story) -> None:
    at = traffic(story, lambda: story.changes((ITEM, INSERT, b"\x03\x80\xff\xff")))
    settings = Settings(Upstream("unused"), Relay(story._url), story.server.downstream)
    here = local_preparer(settings)

    def there(windows: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        try:
            yield from here(windows)
        except ValueError as error:
            raise WorkerError(str(error)) from None

    with pytest.raises(
        ApplyError, match=f"table d.item.*at commit_ts {at} .*`sluice txn skip {at}`"
    ):
        run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=there)


def test_changes_that_contradict_each_other_are_named(story: Story) -> None:
    def twice() -> None:
        story.insert(ITEM, item(50))
        story.insert(ITEM, item(50))

    at = traffic(story, twice)
    fails(story, at, "key id=50", "inserted though it exists")
    skip(story, at)
    story.apply()
    assert ids(story) == EVERYTHING | {50}


def test_rows_of_a_table_that_nobody_knows_are_named(story: Story) -> None:
    stranger = table(99, "stranger", "id int", primary="id")
    row = encode_insert(stranger, {"id": 1})

    def write() -> None:
        story._ts += 10
        story._window([(story._ts, story._ts - 1, 0, 99, 1, INSERT, row)], {}, [])

    at = traffic(story, write)
    fails(story, at, "table id 99")
    skip(story, at)
    story.apply()
    assert ids(story) == EVERYTHING


def test_a_decision_made_for_another_transaction_changes_nothing(story: Story) -> None:
    run(story, "DELETE FROM d.item WHERE id = 5")
    at = traffic(story, lambda: story.delete(ITEM, item(5, 5)))
    skip(story, at + 1)
    fails(story, at, "key id=5")


def test_the_search_leaves_nothing_behind_downstream(story: Story) -> None:
    run(story, "ALTER TABLE d.item MODIFY v tinyint")
    before = story.rows("item")
    traffic(story, lambda: story.insert(ITEM, item(51, 1000)))
    for _ in range(2):
        with pytest.raises(ApplyError):
            story.apply()
        assert story.rows("item") == before


def test_a_run_stops_exactly_at_the_timestamp_it_was_given(story: Story) -> None:
    traffic(story, lambda: story.insert(ITEM, item(50)))
    settings = Settings(Upstream("unused"), Relay(story._url), story.server.downstream)
    (at,) = {
        int(row["commit_ts"])
        for row in story._relay.read(story._relay.windows(0)).to_pylist()
        if row["row"] == encode_insert(ITEM, item(110))
    }
    summary = run_apply(settings, until_ts=at, run_seconds=240, prepare=local_preparer(settings))
    assert summary.checkpoint == at
    assert ids(story) == set(range(10)) | set(range(100, 111))
