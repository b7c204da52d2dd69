"""Airflow's api-server has our pages in it: they mustn't make it a Spark client."""

import subprocess
import sys

_HEAVY = ("pandas", "pyspark", "duckdb", "great_expectations")


def test_the_pages_are_there_without_pandas_and_spark():
    code = "import sys; from sluice.plugins.app import create_app; create_app()"
    code += "; from sluice.pages.app import create_app; create_app()"
    code += f"; print([m for m in {_HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
