"""A transaction as people see it: rows old and new, values as they read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.history.find import (
    DisplayValue,
    NoTransactionError,
    TimeBudget,
    load_transaction,
    load_value,
    one_transaction,
)
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.relay import INSERT, UPDATE, RelayLog
from sluice.tidb.rows import encode_insert, encode_update
from tests.etl.story import Story, table

SPECS = ("id int", "note text", "raw varbinary(2000)", "f float", "d decimal(9,2)")


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied


def past(story: Story) -> HistoryLog:
    return HistoryLog.open(Settings(Upstream("unused"), Relay(story.url), Downstream(type="file")))


def newest(story: Story) -> int:
    last = RelayLog.open(story.url).last()
    assert last is not None
    return last.hi


def test_old_and_new_stand_side_by_side_and_null_is_not_the_empty_text(story: Story) -> None:
    made = story.create(table(11, "t", *SPECS, primary="id"), "CREATE TABLE t …")
    row = {"id": 7, "note": None, "raw": b"\x00\xfe", "f": 0.1, "d": "1.50"}
    story.insert(made, row)
    story.update(made, row, {**row, "note": ""})
    view = load_transaction(past(story), newest(story))
    assert [(rows.table, rows.inserts, rows.updates, rows.deletes) for rows in view.tables] == [
        ("d.t", 0, 1, 0)
    ]
    values = {value.column: value for value in view.rows[0].values}
    assert (values["note"].old, values["note"].new) == (DisplayValue("null"), DisplayValue("text"))
    assert [name for name, value in values.items() if value.changed] == ["note"]
    assert [name for name, value in values.items() if value.key] == ["id"]
    assert values["raw"].new == DisplayValue("bytes", "00fe", 2)
    assert [values[name].new.text for name in ("id", "f", "d")] == ["7", "0.1", "1.50"]  # type: ignore[union-attr]


def test_a_transaction_that_a_pipeline_wrote_has_the_channel_of_its_mark(story: Story) -> None:
    made = story.create(table(11, "t", *SPECS, primary="id"), "CREATE TABLE t …")
    columns = ("id bigint", "channel_id bigint", "val bigint")
    marks = table(12, "_drainer_repl_mark", *columns, primary="id,channel_id")
    marks = story.create(replace(marks, schema_name="retl"), "CREATE TABLE …")
    row = {"id": 7, "note": None, "raw": b"", "f": 0.1, "d": "1.50"}
    mark = {"id": 3, "channel_id": 2, "val": 1}
    story.changes(
        (made, INSERT, encode_insert(made, row)),
        (marks, UPDATE, encode_update(marks, mark, {**mark, "val": 2})),
    )
    assert load_transaction(past(story), newest(story)).channels == (2,)
    story.delete(made, row)
    assert load_transaction(past(story), newest(story)).channels == ()


def test_a_long_value_is_cut_and_can_be_had_whole(story: Story) -> None:
    made = story.create(table(11, "t", *SPECS, primary="id"), "CREATE TABLE t …")
    long = {"id": 1, "note": "ä" * 100_000, "raw": bytes(range(256)) * 4, "f": None, "d": None}
    story.insert(made, long)
    story.delete(made, long)
    at, known = newest(story), past(story)
    (row,) = load_transaction(known, at).rows
    values = {value.column: value.old for value in row.values}
    assert {value.new for value in row.values} == {None}
    assert values["note"] == DisplayValue("text", "ä" * 240, 100_000, cut=True)
    assert values["raw"] == DisplayValue("bytes", (bytes(range(80))).hex(), 1024, cut=True)
    assert load_value(known, at, row.position, "note", old=True) == long["note"]
    assert load_value(known, at, row.position, "raw", old=True) == long["raw"]
    for column, old in (("note", False), ("other", True)):
        with pytest.raises(NoTransactionError):
            load_value(known, at, row.position, column, old=old)


def test_rows_come_in_pages_all_of_them_counted_or_it_is_said(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = story.create(table(11, "t", "id int", primary="id"), "CREATE TABLE t …")
    story.insert(made, *({"id": i} for i in range(120)))
    known, at = past(story), newest(story)
    pages = [
        load_transaction(known, at, offset=offset, patience=TimeBudget(60.0))
        for offset in (0, 50, 100, 150)
    ]
    shown = [[row.values[0].new.text for row in page.rows] for page in pages]  # type: ignore[union-attr]
    assert shown == [[str(i) for i in range(120)][n : n + 50] for n in (0, 50, 100, 150)]
    assert all(page.tables[0].inserts == 120 and page.complete for page in pages)
    assert load_transaction(known, at, "d.other").rows == []
    monkeypatch.setattr(one_transaction, "MAX_ROWS_SHOWN", 10)
    assert not load_transaction(known, at, patience=TimeBudget(0.0)).complete


def test_ddl_and_what_was_never_committed_are_told_apart(story: Story) -> None:
    story.create(table(11, "t", "id int", primary="id"), "CREATE TABLE t (id int)")
    at = newest(story)
    view = load_transaction(past(story), at)
    assert view.ddl is not None
    assert (view.ddl.statement, view.ddl.tables) == ("CREATE TABLE t (id int)", ("d.t",))
    for ts in (at - 1, at + (1 << 40), 5):
        with pytest.raises(NoTransactionError):
            load_transaction(past(story), ts)


def test_a_row_that_cannot_be_read_says_why_and_does_not_hide_the_others(story: Story) -> None:
    made = story.create(table(11, "t", "id int", primary="id"), "CREATE TABLE t (id int)")
    story.changes((made, 0, b"\xff\xff"))
    (row,) = load_transaction(past(story), newest(story)).rows
    assert "ffff" in row.fault
    assert json.dumps(row.fault)
