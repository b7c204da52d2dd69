"""Spark's workers import little: what a job's function drags in, each worker process loads before
its first row.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_CLIENT_ONLY = (
    "airflow",
    "click",
    "confluent_kafka",
    "pymysql",
    "pyspark.sql",
    "sluice.etl.apply._",
    "sluice.etl.apply.run",
    "sluice.etl.downstream",
    "sluice.etl.landing._",
    "sluice.etl.landing.land",
    "sluice.etl.landing.planner",
    "sluice.etl.landing.schema",
)


_READS_TIDB = ("sluice.etl.copy.backfill.reader:ReadChunks",)
"""These have a client of a database in the worker, as that's where they read."""


_JOBS = (
    "sluice.etl.history.archive.verifying:ReadSegments",
    "sluice.etl.history.archive.worker:BuildSegments",
    "sluice.etl.history.as_of.worker:Aggregate",
    "sluice.etl.history.as_of.worker:Shuffle",
    "sluice.etl.history.as_of.untouched:FindTouched",
    "sluice.etl.history.as_of.untouched:FinishUntouched",
    "sluice.etl.history.snapshots.chunk_writer:WriteChunks",
    "sluice.etl.copy.staged_loads:CopyChunks",
    "sluice.etl.landing.extract.worker:LandRanges",
    "sluice.etl.history.find.scan:FindInWindows",
    "sluice.etl.apply.prepare_windows:PrepareWindows",
    "sluice.etl.spark.persistent_worker_task:ServeCalls",
    *_READS_TIDB,
)


_LOOKING = """
import importlib, json, os, sys
import pyarrow  # every worker has it, and it takes longest
for name in sys.argv[1:]:
    if not os.fork():
        module, job = name.split(":")
        found = getattr(importlib.import_module(module), job).__module__
        print(json.dumps([name, found, *sys.modules]), flush=True)
        os._exit(0)
    os.wait()
"""
"""A process that forks one for each job, which finds it as a worker does and says what it has
loaded then.
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """By job: the module that it names, and the modules that are loaded once it is found."""
    argv = [sys.executable, "-c", _LOOKING, *_JOBS]
    said = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {job: found for job, *found in map(json.loads, said.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("job", _JOBS)
def test_a_worker_that_finds_its_job_loads_nothing_that_only_the_client_needs(
    found: dict[str, list[str]], job: str
) -> None:
    module, *loaded = found[job]
    assert module == job.partition(":")[0], "Spark pickles the job by this path"
    allowed = ("pymysql",) if job in _READS_TIDB else ()
    assert [
        name for name in loaded if name.startswith(_CLIENT_ONLY) and not name.startswith(allowed)
    ] == []


@pytest.mark.slow
def test_every_job_of_the_workers_is_looked_at() -> None:
    found = {
        f"sluice.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{node.name}"
        for path in (ROOT / "etl").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and any(mark in ast.unparse(node) for mark in ("@worker_function", "freeze_gc()"))
    }
    assert found == set(_JOBS)
