"""Overrides about single transactions and DDL: durable, exclusive, strict when read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.relay import (
    REPLACE,
    SKIP,
    Override,
    OverrideExistsError,
    RelayCorruptError,
    RelayLog,
    WindowRecord,
)

TS = 470614793860415502


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(f"file://{tmp_path}")


def test_a_override_is_read_back_by_every_reader_and_can_be_taken_back(relay: RelayLog) -> None:
    replaced = Override(
        TS + 1, REPLACE, ("ALTER TABLE `x` ADD `y;` int", "SELECT 'é;'"), "ann", "why not", 5
    )
    relay.overrides.add(replaced)
    relay.overrides.add(Override(TS, SKIP))
    other = RelayLog.open(relay.url)
    assert other.overrides.list() == [Override(TS, SKIP), replaced]
    assert other.overrides.list(TS) == [replaced]
    assert other.overrides.list(TS - 1, TS) == [Override(TS, SKIP)]
    assert other.overrides.remove(TS)
    assert not other.overrides.remove(TS)
    assert relay.overrides.list() == [replaced]


def test_a_second_override_about_the_same_commit_is_refused_and_the_first_stays(
    relay: RelayLog,
) -> None:
    relay.overrides.add(Override(TS, SKIP))
    with pytest.raises(OverrideExistsError, match=f"sluice overrides remove {TS}"):
        relay.overrides.add(Override(TS, REPLACE, ("SELECT 1",)))
    assert relay.overrides.list() == [Override(TS, SKIP)]


def test_the_first_use_is_noted_and_forgotten_with_the_override(relay: RelayLog) -> None:
    override = Override(TS, SKIP)
    relay.overrides.add(override)
    assert relay.overrides.used_ms() == {}
    relay.overrides.mark_used([override])
    first = relay.overrides.used_ms()
    relay.overrides.mark_used([override])
    assert relay.overrides.used_ms() == first
    assert first[TS] > 0
    assert relay.overrides.list() == [override]
    relay.overrides.remove(TS)
    assert relay.overrides.used_ms() == {}


@pytest.mark.parametrize(
    "change",
    [
        {"action": "perhaps"},
        {"commit_ts": TS + 1},
        {"sql": "DROP"},
        {"sql": [1]},
        {"more": 1},
        {"commit_ts": True},
    ],
)
def test_a_damaged_override_is_an_error_that_names_its_file(
    relay: RelayLog, tmp_path: Path, change: dict[str, object]
) -> None:
    relay.overrides.add(Override(TS, SKIP))
    (file,) = (tmp_path / "overrides").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(RelayCorruptError, match=file.name):
        relay.overrides.list()
    # the way out that the error names works on a damaged file too
    assert relay.overrides.remove(TS)
    assert relay.overrides.list() == []


def test_a_window_record_tells_what_landing_was_told_to_leave_out_and_is_as_before_without(
    relay: RelayLog,
) -> None:
    plain = WindowRecord(TS - 2, TS - 1, 7, "t", 0, 0, 0, 1)
    left_out = WindowRecord(
        TS - 1,
        TS,
        7,
        "t",
        0,
        1,
        0,
        1,
        skipped=({"commit_ts": TS, "start_ts": TS - 1, "why": "no Prewrite"},),
    )
    assert b"skipped" not in plain.to_json()
    for window in (plain, left_out):
        assert WindowRecord.from_json(window.to_json()) == window
