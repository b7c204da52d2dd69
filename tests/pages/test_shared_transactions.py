"""Pages show, and decide about, each of several transactions that share a commit timestamp."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.history.find import SearchQuery
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.past_transactions import (
    found_document,
    state_document,
    transaction_document,
)
from sluice.relay.failures import Failure
from tests.etl.shared_story import SharedStory
from tests.etl.story import table

ONE = table(11, "one", "id int", "v int", primary="id")


@pytest.fixture
def told(tmp_path: Path) -> tuple[NamedPipeline, int]:
    """Two transactions at the second value."""
    story = SharedStory(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    story.create(ONE, "CREATE TABLE one …")
    with story.together():
        story.insert(ONE, {"id": 1, "v": 1})
        story.insert(ONE, {"id": 2, "v": 2})
    (tmp_path / "files").mkdir()
    path = tmp_path / "shop.toml"
    path.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{story.url}"\n'
        f'[downstream]\ntype = "file"\n[file]\ndir = "{tmp_path}/files"\n'
    )
    return NamedPipeline("", path), story.now


def test_the_list_and_each_page_name_both(told: tuple[NamedPipeline, int]) -> None:
    pipeline, at = told
    names = [f"{at}-{at - 1}", f"{at}-{at - 11}"]
    query = SearchQuery(0, 1 << 62, order="newest", limit=1)
    found = found_document(pipeline, query, keys=True)["found"]
    assert [one["at"] for one in found] == names
    for name, other, row in ((names[0], names[1], 2), (names[1], names[0], 1)):
        key = at, int(name.partition("-")[2])
        shown = transaction_document(pipeline, key, "", 0)
        assert (shown["at"], shown["others"]) == (name, [other])
        assert shown["rows"][0]["values"][0]["new"]["text"] == str(row)


def test_an_override_of_one_is_not_shown_at_the_other(told: tuple[NamedPipeline, int]) -> None:
    pipeline, at = told
    form = operate.OperateForm("skip-txn", f"{at}-{at - 1}")
    operate.dispatch(pipeline.settings, form)
    assert state_document(pipeline, (at, at - 1))["override"] is not None
    assert state_document(pipeline, (at, at - 11))["override"] is None
    operate.dispatch(pipeline.settings, operate.OperateForm("remove-override", f"{at}-{at - 1}"))
    assert state_document(pipeline, (at, at - 1))["override"] is None


def test_the_transaction_at_which_applying_has_stopped_is_refused_with_a_command(
    told: tuple[NamedPipeline, int],
) -> None:
    pipeline, at = told
    text = f"the transaction at commit_ts {at} doesn't fit the downstream"
    relay = pipeline.settings.open_relay()
    relay.failures.note(Failure("apply", text, "compare the table: `sluice verify`", 7))
    refused = state_document(pipeline, (at, 0))["refused"]
    assert refused["text"] == text and refused["command"] == f"sluice txn skip {at}"
    assert state_document(pipeline, (at + 1, 0))["refused"] is None
    relay.failures.clear("apply")
    assert state_document(pipeline, (at, 0))["refused"] is None


def test_a_mistyped_table_is_answered_with_the_one_that_was_meant(
    told: tuple[NamedPipeline, int],
) -> None:
    pipeline, _ = told
    query = SearchQuery(0, 1 << 62, (f"{ONE.schema_name}.oen",), order="newest", limit=9)
    document = found_document(pipeline, query, keys=True)
    assert f"did you mean {ONE.full_name}?" in document["unknown_table"]
    known = SearchQuery(0, 1 << 62, (ONE.full_name,), ("delete",), order="newest", limit=9)
    assert found_document(pipeline, known, keys=True)["unknown_table"] == ""
