"""Print Airflow's setting of DAG bundles: ``python -m sluice.airflow``."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["DAGS", "dag_bundles"]

DAGS = (Path(__file__).parents[1] / "dags").resolve()
"""Folder of Sluice's DAG files."""
_LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"


def dag_bundles() -> str:
    """Return two bundles as JSON: Airflow's folder of DAGs, and Sluice's."""
    own = {"name": "dags-folder", "classpath": _LOCAL, "kwargs": {}}
    ours = {"name": "sluice", "classpath": _LOCAL, "kwargs": {"path": str(DAGS)}}
    return json.dumps([own, ours])


if __name__ == "__main__":
    print(dag_bundles())
