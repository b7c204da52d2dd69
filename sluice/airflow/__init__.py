"""Sensors, triggers, operators and assets for Airflow DAGs that work with a Sluice pipeline.

    from sluice.airflow import SluiceReached

    SluiceReached(task_id="replica", pipeline="shop", moment="{{ data_interval_end }}") >> report

DAG files import this all the time, so the pipeline itself is imported when a task or trigger runs.
"""

from sluice.airflow.assets import table_asset
from sluice.airflow.operators import (
    SluiceBackfillOperator,
    SluiceBootstrapOperator,
    SluiceJobOperator,
    SluiceQualityOperator,
    SluiceRestoreDrillOperator,
    SluiceRestoreOperator,
    SluiceSnapshotOperator,
    SluiceVerifyOperator,
)
from sluice.airflow.waiting import SluiceCompletedTrigger, SluiceReached, SluiceReachedTrigger

__all__ = [
    "SluiceBackfillOperator",
    "SluiceBootstrapOperator",
    "SluiceCompletedTrigger",
    "SluiceJobOperator",
    "SluiceQualityOperator",
    "SluiceReached",
    "SluiceReachedTrigger",
    "SluiceRestoreDrillOperator",
    "SluiceRestoreOperator",
    "SluiceSnapshotOperator",
    "SluiceVerifyOperator",
    "table_asset",
]
