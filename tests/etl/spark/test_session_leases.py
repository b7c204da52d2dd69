"""Batch work leases sessions: few, and as many as are in use at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import BATCH, SessionLease, SessionTarget
from sluice.etl.spark.worker_tuning import text_batch
from tests.etl.spark_fixture import SparkServer

_HOLDS = """
from sluice.etl.spark.session_target import SessionLease
lease = SessionLease()
print(lease.role, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_leases_at_a_time_differ_and_a_number_that_is_free_is_used_again() -> None:
    first, second = SessionLease(), SessionLease()
    assert first.role != second.role
    first.release()
    third = SessionLease()
    assert third.role == first.role
    second.release()
    third.release()
    third.release()  # it is over already, and another has the number
    assert SessionLease().role == first.role


def test_a_process_that_is_killed_holds_no_number() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        held = other.stdout.readline().strip()
        beside = SessionLease()
        assert beside.role != held
        other.kill()
        other.wait()
    assert SessionLease().role == held


def test_where_no_file_can_be_locked_each_session_is_used_once(tmp_path: Path) -> None:
    (tmp_path / f"sluice-sessions-{psutil.Process().uids().real}").write_text("no folder")
    first, second = SessionLease(), SessionLease()
    assert first.role != second.role and first.role.startswith(f"{BATCH} ")
    first.release()
    assert SessionLease().role != first.role


@pytest.mark.ci_cases("12")
@pytest.mark.slow
@pytest.mark.parametrize("calls", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_however_often_it_is_called_batch_work_leaves_one_daemon_of_python(
    spark_server: SparkServer, tmp_path: Path, calls: int
) -> None:
    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield text_batch("here")

    place = SessionTarget(Spark(spark_server.remote), BATCH, tmp_path.as_uri())
    before = _daemons(spark_server)
    for _ in range(calls):
        job = JobCalls(place, answer, 60.0)
        assert job(["anything"]) == ["here"]
        job.close()
    assert len(_daemons(spark_server) - before) == 1


def _daemons(server: SparkServer) -> set[int]:
    """Return the ids of Spark's Python daemons: processes that fork workers."""
    assert server._process is not None
    return {
        child.pid
        for child in psutil.Process(server._process.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE and "pyspark.daemon" in child.cmdline()
    }


def test_batch_sessions_adapt_their_plans_and_those_of_windows_dont(
    spark_remote: str, tmp_path: Path
) -> None:
    server = Spark(spark_remote)
    found = {}
    for role in (BATCH, "land"):
        spark = spark_session.connect(SessionTarget(server, role, tmp_path.as_uri()))
        found[role] = spark.conf.get("spark.sql.adaptive.enabled")
        spark_session.close(spark)
    assert found == {BATCH: "true", "land": "false"}
