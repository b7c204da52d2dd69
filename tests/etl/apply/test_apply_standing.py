"""Applying through a standing Spark worker that dies or stands still in the middle of what it
prepares.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Spark, Upstream
from sluice.etl.spark import persistent_worker as standing
from sluice.etl.spark import resilient_function
from tests.etl.freezing import differences, tell
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.stopped_work import by_steps, leave_nothing

POINTS = [("receive 3", signal.SIGKILL), ("send 8", signal.SIGKILL), ("send 6", signal.SIGSTOP)]


@pytest.mark.slow
def test_wherever_the_worker_of_an_applier_dies_or_stands_still_all_is_applied_once(
    mariadb: MariaDBServer, spark_remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (
        ("_HEARTBEAT_TIMEOUT_S", 300.0),
        ("_START_TIMEOUT_S", 300.0),
        ("_MAX_LIFETIME_S", 3_000.0),
    ):
        # the steps of a busy machine are those of a quiet one
        monkeypatch.setattr(standing, name, seconds)
    monkeypatch.setattr(resilient_function, "_CORE_TIMEOUT_S", 300.0)
    story = tell(mariadb, tmp_path)
    relay, made = tmp_path / "run" / "relay", resilient_function.ResilientFunction
    settings = Settings(
        Upstream("unused"), Relay(relay.as_uri()), mariadb.downstream, spark=Spark(spark_remote),
        apply=Apply("atomic", 2, 6),
    )  # fmt: skip
    for number, (stop, how) in enumerate(POINTS):
        mariadb.empty()
        shutil.rmtree(relay, ignore_errors=True)  # at one URL, as its session and workers are warm
        shutil.copytree(tmp_path / "relay", relay)
        if how == signal.SIGSTOP:
            monkeypatch.setattr(standing, "_HEARTBEAT_TIMEOUT_S", 1.0)
        told = str(tmp_path / f"worker-{number}")
        monkeypatch.setattr(
            resilient_function,
            "ResilientFunction",
            lambda place, prepare, schemas, told=told, stop=stop, how=how: made(
                place, by_steps(prepare, stop, told, how), schemas
            ),
        )
        try:
            summary = run_apply(settings, until_ts=story._ts, run_seconds=240)
            assert (stop, bool(summary.retries)) == (stop, True)
            assert differences(mariadb, story._ts) == []
        finally:
            leave_nothing(told)
