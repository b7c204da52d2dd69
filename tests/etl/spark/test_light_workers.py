"""Spark's workers import little: what a job's function drags in, each worker process loads before its first row."""

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
    "etl.apply",
    "etl.downstream",
    "etl.landing",
)


_READS_TIDB = ("etl.backfill.reader:ReadChunks",)
"""These have a client of a database in the worker, as that's where they read."""


_JOBS = (
    "etl.archive.verifying:ReadVolumes",
    "etl.archive.worker:MakeVolumes",
    "etl.asof.worker:Compute",
    "etl.asof.worker:Deal",
    "etl.base.chunk_writer:WriteChunks",
    "etl.copy.chunk_files:CopyChunks",
    "etl.explode.worker:LandRanges",
    "etl.find.worker:FindInWindows",
    "etl.prepare.worker:PrepareWindows",
    "etl.spark.standing_worker:Attend",
    *_READS_TIDB,
)


@pytest.mark.parametrize("job", _JOBS)
def test_a_worker_that_finds_its_job_loads_nothing_that_only_the_client_needs(job: str) -> None:
    module, name = job.split(":")
    script = f"import json, sys; from {module} import {name} as job; print(json.dumps([job.__module__, *sys.modules]))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    found, *loaded = json.loads(said)
    assert found == module, "Spark pickles the job by this path"
    allowed = ("pymysql",) if job in _READS_TIDB else ()
    assert [name for name in loaded if name.startswith(_CLIENT_ONLY) and not name.startswith(allowed)] == []


def test_every_job_of_the_workers_is_looked_at() -> None:
    found = {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{node.name}"
        for path in (ROOT / "etl").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and "freeze_loaded()" in ast.unparse(node)
    }
    assert found == set(_JOBS)
