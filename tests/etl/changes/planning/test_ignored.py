"""Transactions and DDL that are not to go downstream, by commit timestamp."""

from __future__ import annotations

from pathlib import Path

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.steps import Step
from sluice.relay import RelayLog
from tests.etl.relay_from_recording import RECORDINGS, land


def steps_of(folder: Path, ignored: set[int]) -> list[Step]:
    url = f"file://{folder}"
    relay = RelayLog.open(url) if any(folder.iterdir()) else land(RECORDINGS / "ddl", url, 100_000)
    window = relay.first()
    assert window is not None
    return list(
        prepare_steps(
            url, BatchPayload.from_windows([window]), PrepareOptions(ignored_ts=frozenset(ignored))
        )
    )


def test_an_ignored_ddl_is_not_sent_but_later_rows_are_read_with_the_schema_it_made(
    tmp_path: Path,
) -> None:
    everything = steps_of(tmp_path, set())
    ddls = [step for step in everything if step.kind == "ddl"]
    altered = next(step for step in ddls if "ADD COLUMN" in step.detail.query)
    found = steps_of(tmp_path, {altered.commit_ts})
    assert [s.commit_ts for s in found if s.kind == "ddl"] == [
        s.commit_ts for s in ddls if s.commit_ts != altered.commit_ts
    ]
    assert [bytes(s.payload) for s in found if s.kind != "commit"] == [
        bytes(s.payload) for s in everything if s.kind != "commit" and s is not altered
    ]
    warnings = [warning for s in found if s.kind == "commit" for warning in s.detail.warnings]
    assert len(warnings) == 1
    assert str(altered.commit_ts) in warnings[0]
    assert "ADD COLUMN" in warnings[0]


def test_an_ignored_transaction_is_left_out_and_the_checkpoint_moves_on(tmp_path: Path) -> None:
    everything = steps_of(tmp_path, set())
    single = next(s for s in everything if s.kind == "load" and s.detail.first_ts == s.commit_ts)
    found = steps_of(tmp_path, {single.commit_ts})
    assert not [
        s
        for s in found
        if s.kind in ("load", "delete") and s.commit_ts == single.commit_ts == s.detail.first_ts
    ]
    assert found[-1].kind == "commit"
    assert found[-1].commit_ts == everything[-1].commit_ts
    assert sum(s.changes for s in found) < sum(s.changes for s in everything)
    warnings = [warning for s in found if s.kind == "commit" for warning in s.detail.warnings]
    assert any(str(single.commit_ts) in warning for warning in warnings)
