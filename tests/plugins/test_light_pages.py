"""Airflow's api-server has our pages in it: they mustn't make it a Spark client."""

import subprocess
import sys

import pytest

from sluice.devstack.repository import REPOSITORY

_HEAVY = ("pandas", "pyspark", "duckdb", "great_expectations")


@pytest.mark.slow
def test_the_pages_are_there_without_pandas_and_spark():
    code = "import sys; from sluice.plugins.app import create_app; create_app()"
    code += "; from sluice.pages.app import create_app; create_app()"
    code += f"; print([m for m in {_HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_page_loads_more_than_300_kb():
    files = [path for path in (REPOSITORY / "plugins" / "static").iterdir() if path.is_file()]
    assert len(files) > 20
    assert sum(path.stat().st_size for path in files) < 300_000  # a page loads some of them
