"""Pieces of a batch that are planned together have the steps that each has alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.bench.apply_shapes import landed
from sluice.bench.shape_parts import Kind, Shape, history, int_column, make_table, varchar_column
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.planning._change_set_builder import ChangeSetBuilder
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import ChangeError, Step
from sluice.etl.settings.rules import parse_filter
from sluice.relay import WindowRecord

CUT = 5
"""Tables of a piece."""
PLAIN = ("v", int_column()), ("t", varchar_column())
TABLES = {
    "a number for a key": [
        make_table(100 + n, f"n{n}", ("id", int_column()), *PLAIN) for n in range(30)
    ],
    "a text for a key": [
        make_table(200 + n, f"t{n}", ("id", varchar_column(20)), *PLAIN) for n in range(20)
    ],
    "no key": [make_table(300 + n, f"k{n}", *PLAIN, keys=0) for n in range(8)],
}


@pytest.fixture
def windows(tmp_path: Path) -> list[WindowRecord]:
    kinds = tuple(
        Kind(
            tuple(tables),
            lambda rng, n: {"id": n, "v": rng.randrange(9), "t": rng.choice("abc'é\t")},
            ("v", "t"),
        )
        if name != "a text for a key"
        else Kind(
            tuple(tables),
            lambda rng, n: {"id": f"k{n}", "v": rng.randrange(9), "t": rng.choice("abc")},
            ("v", "t"),
        )
        for name, tables in TABLES.items()
    )
    made = history(Shape(kinds, rows=0, changes=400, window=20), seed=3)
    relay, _ = landed(made, tmp_path.as_uri(), 20)
    return list(relay.windows(0))


def planned(
    tmp_path: Path, windows: list[WindowRecord], options: PrepareOptions
) -> tuple[list[Step], str]:
    """The steps, without the time they took, and the error that they end with."""
    batch = replace(BatchPayload.from_windows(windows), cut_tables=CUT)
    steps: list[Step] = []
    try:
        for step in prepare_steps(tmp_path.as_uri(), batch, options):
            detail = replace(step.detail, timings_ms={}) if step.kind == "commit" else step.detail  # type: ignore[call-arg]
            steps.append(replace(step, detail=detail, payload=bytes(step.payload)))
    except ChangeError as error:
        return steps, str(error)
    return steps, ""


def both_ways(
    tmp_path: Path,
    windows: list[WindowRecord],
    monkeypatch: pytest.MonkeyPatch,
    filters: Filter | None = None,
) -> tuple[list[Step], str]:
    options = PrepareOptions(filters=filters or Filter())
    # so that cutting pays for so few
    monkeypatch.setattr("sluice.etl.changes.planning._transaction_cuts._DOUBLE_COST_TABLES", 1)
    together = planned(tmp_path, windows, options)
    with monkeypatch.context() as patched:
        patched.setattr(ChangeSetBuilder, "_cut_steps", ChangeSetBuilder._steps_one_by_one)
        assert planned(tmp_path, windows, options) == together
    return together


def test_a_piece_has_the_steps_that_it_has_alone(
    windows: list[WindowRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, error = both_ways(tmp_path, windows, monkeypatch)
    commits = [step for step in steps if step.kind == "commit"]
    assert not error
    assert len(commits) > 20
    assert sum(step.changes for step in commits) == 400
    assert commits[-1].commit_ts == windows[-1].hi


def test_a_piece_of_which_rules_leave_nothing_still_takes_the_checkpoint_on(
    windows: list[WindowRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = both_ways(tmp_path, windows, monkeypatch)
    rules = {
        "rows": [{"tables": ["*.n*"], "where": "v > 4"}],
        "ignore-table": [{"db-name": "~.*", "tbl-name": "t*"}],
    }
    steps, error = both_ways(tmp_path, windows, monkeypatch, parse_filter(rules)[0])
    assert not error
    commits, all_commits = (
        [step for step in each if step.kind == "commit"] for each in (steps, whole)
    )
    assert [step.commit_ts for step in commits] == [step.commit_ts for step in all_commits]
    assert 0 < sum(step.changes for step in commits) < 400


def test_pieces_before_a_change_that_is_refused_go_downstream(
    windows: list[WindowRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = [
        replace(window, tables={k: v for k, v in window.tables.items() if k != "105"})
        for window in windows
    ]
    steps, error = both_ways(tmp_path, cut_off, monkeypatch)
    assert "table id 105" in error
    assert sum(step.kind == "commit" for step in steps) > 3
