"""A process that stood still while another one finished its job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.backfill import AlignedChunkScheduler
from sluice.relay import RelayLog
from sluice.relay.aligned_chunks import TableRepair
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    PAUSED,
    Job,
    Jobs,
    LeaseLostError,
    Runner,
    WriteScope,
    lease,
)

TABLES = (7,)


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(tmp_path.as_uri())


@pytest.fixture
def job(relay: RelayLog, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(lease, "HEARTBEAT_INTERVAL_S", 3600.0)  # who stands still says nothing
    return Jobs.for_pipeline(relay).create("backfill", {}, WriteScope("db", ("d.t",)), "test")


def repair(relay: RelayLog, job: Job, run: Any) -> None:
    nobody: Any = None
    AlignedChunkScheduler(relay.aligned_chunks, job.id, lambda: 1, nobody).begin_repair(
        TableRepair(job.id, job.id, TABLES), run
    )


@pytest.mark.parametrize("state", [DONE, CANCELLED])
def test_who_wakes_when_its_job_is_over_leaves_the_checks_of_its_tables_as_they_are(
    relay: RelayLog, job: Job, state: str
) -> None:
    with job.run(Runner("first")) as first:
        with job.run(Runner("second"), timeout_s=0) as second:
            repair(relay, job, second)
            relay.aligned_chunks.end_repair(job.id)
            second.end(state)
        with pytest.raises(LeaseLostError):
            repair(relay, job, first)
    assert relay.aligned_chunks.repairs() == []


def test_who_wakes_while_another_goes_on_with_its_job_leaves_that_one_s_word(
    relay: RelayLog, job: Job
) -> None:
    with job.run(Runner("first")) as first, job.run(Runner("second"), timeout_s=0) as second:
        repair(relay, job, second)
        with pytest.raises(LeaseLostError):
            repair(relay, job, first)
        assert [one.tables for one in relay.aligned_chunks.repairs()] == [TABLES]
        second.end(PAUSED)
