"""What was refused stays refused: no retry, no restart and no other mode lets it through, until
operators decide.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream import Blocked
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.operate import OperateError, accept, skip_transaction
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import Control
from tests.cli.typed import typed
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table

WAS_UNIQUE = table(11, "item", "id int", "name varchar(20)", primary="id")
UNIQUE = table(11, "item", "id int", "name varchar(20)", primary="id", unique=("name",))


def settings_of(story: Story, mode: str) -> Settings:
    return Settings(
        Upstream("unused"), Relay(story._url), story.server.downstream, apply=Apply(mode, 3, 10_000)
    )


def go_on(story: Story, mode: str) -> None:
    chosen = settings_of(story, mode)
    run_apply(chosen, until_ts=story._ts, run_seconds=240, prepare=local_preparer(chosen))


def row(i: int, name: str) -> dict[str, Any]:
    return {"id": i, "name": name}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    """Row 2 has the name of row 1: the unique index is being dropped upstream, it is delete-only
    there already.
    """
    story = Story(mariadb, tmp_path)
    story.create(UNIQUE, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20) unique)")
    story.insert(UNIQUE, row(1, "a"), row(7, "g"))
    story.apply()
    story._tables[11] = WAS_UNIQUE
    story.insert(WAS_UNIQUE, row(2, "a"))
    story.delete(WAS_UNIQUE, row(7, "g"))
    return story


def refused(story: Story, mode: str) -> str:
    with pytest.raises(ApplyError) as caught:
        go_on(story, mode)
    return str(caught.value)


def kept(story: Story) -> Blocked | None:
    found = read_checkpoint(settings_of(story, "atomic").target, 7)
    assert found is not None
    return found.in_flight.refused if found.in_flight else None


def accepted(text: str) -> str:
    match = re.search(r"sluice accept (\w+)", text)
    assert match, text
    return match[1]


def test_a_row_in_the_way_is_refused_again_by_every_later_attempt_and_none_is_lost(
    story: Story,
) -> None:
    first = refused(story, "parallel")
    assert "d.item" in first
    for mode in ("parallel", "atomic", "parallel"):
        assert "refused before" in refused(story, mode)
        assert (1, "a") in story.rows("item")
    found = kept(story)
    assert found is not None
    assert found.token == accepted(refused(story, "atomic")) and "d.item" in found.text


@pytest.mark.quick_cases("parallel")
@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_an_order_to_go_on_still_lets_no_other_row_be_replaced(story: Story, mode: str) -> None:
    """What an order lets through is written by key.

    A row that is in nobody's changes stays, and the refusal of that is a new one.
    """
    refused(story, "parallel")
    old = accepted(refused(story, mode))
    accept(settings_of(story, mode), old)
    assert "1 row replaced" in refused(story, mode)
    new = accepted(refused(story, mode))
    assert new != old
    assert (1, "a") in story.rows("item")
    with story.server.connect() as connection:
        connection.cursor().execute("ALTER TABLE d.item DROP INDEX u2")
    accept(settings_of(story, mode), new)
    go_on(story, mode)
    assert story.rows("item") == [(1, "a"), (2, "a")]
    assert kept(story) is None


def test_what_was_not_refused_cannot_be_accepted(story: Story) -> None:
    with pytest.raises(OperateError, match="no blocked batch has the id"):
        accept(settings_of(story, "parallel"), "0badc0de")
    refused(story, "parallel")
    with pytest.raises(OperateError, match=r"d\.item"):
        accept(settings_of(story, "parallel"), "0badc0de")
    story._relay.change_control(lambda _: Control(accepted="0badc0de"))
    assert "refused before" in refused(story, "parallel")


@pytest.mark.parametrize("mode", ["parallel", "atomic"])
def test_a_transaction_that_is_skipped_after_a_refusal_lets_the_others_through(
    story: Story, mode: str
) -> None:
    refused(story, "parallel")
    skip_transaction(settings_of(story, mode), story._ts - 10)
    go_on(story, mode)
    assert story.rows("item") == [(1, "a")]


@pytest.mark.slow
def test_commands_show_what_is_blocked_with_the_id_that_accepts_it(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(story, "parallel")
    token = accepted(refused(story, "parallel"))
    config = tmp_path / "shop.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{story._url}"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {story.server.port}\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    status, listed = typed("status"), typed("pipelines")
    assert (status.returncode, listed.returncode) == (4, 4), status.stderr + listed.stderr
    assert "d.item" in status.stdout and accepted(status.stdout) == token
    assert f"blocked: {token}" in listed.stdout
    assert typed("accept", token).returncode == 0
