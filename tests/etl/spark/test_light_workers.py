"""Spark's workers import little: what a job's function drags in, each worker process loads before its first row."""

import json
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "job", ["etl.copy.worker:CopyChunks", "etl.explode.worker:LandRanges", "etl.prepare.worker:PrepareWindows"]
)
def test_a_worker_that_finds_its_job_loads_nothing_that_only_the_client_needs(job: str) -> None:
    module, name = job.split(":")
    script = f"import json, sys; from {module} import {name} as job; print(json.dumps([job.__module__, *sys.modules]))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    found, *loaded = json.loads(said)
    assert found == module, "Spark pickles the job by this path"
    assert [name for name in loaded if name.startswith(_CLIENT_ONLY)] == []
