"""Sensors, triggers, operators and assets for Airflow DAGs that work with a Sluice pipeline.

    from sluice.airflow import SluiceReached

    SluiceReached(task_id="replica", pipeline="shop", moment="{{ data_interval_end }}") >> report

DAG files import this all the time, so the pipeline itself is imported when a task or trigger runs.
Names load on first use: an agent imports nothing of Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.airflow.assets import table_asset, verified_asset
    from sluice.airflow.hook import SluiceHook
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
    "SluiceHook",
    "SluiceJobOperator",
    "SluiceQualityOperator",
    "SluiceReached",
    "SluiceReachedTrigger",
    "SluiceRestoreDrillOperator",
    "SluiceRestoreOperator",
    "SluiceSnapshotOperator",
    "SluiceVerifyOperator",
    "get_provider_info",
    "table_asset",
    "verified_asset",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "table_asset": "sluice.airflow.assets",
        "verified_asset": "sluice.airflow.assets",
        "SluiceHook": "sluice.airflow.hook",
        "SluiceBackfillOperator": "sluice.airflow.operators",
        "SluiceBootstrapOperator": "sluice.airflow.operators",
        "SluiceJobOperator": "sluice.airflow.operators",
        "SluiceQualityOperator": "sluice.airflow.operators",
        "SluiceRestoreDrillOperator": "sluice.airflow.operators",
        "SluiceRestoreOperator": "sluice.airflow.operators",
        "SluiceSnapshotOperator": "sluice.airflow.operators",
        "SluiceVerifyOperator": "sluice.airflow.operators",
        "SluiceCompletedTrigger": "sluice.airflow.waiting",
        "SluiceReached": "sluice.airflow.waiting",
        "SluiceReachedTrigger": "sluice.airflow.waiting",
    },
)


def get_provider_info() -> dict[str, Any]:
    """Describe this package to Airflow, by the entry point `apache_airflow_provider`."""
    from sluice.airflow.messages import distribution

    integration, (name, version) = "Sluice", distribution()
    return {
        "package-name": name,  # Airflow refuses another one than the entry point's
        "name": integration,
        "description": "Near real time replication of TiDB",
        "versions": [version],
        "connection-types": [
            {
                "connection-type": "sluice",
                "hook-class-name": "sluice.airflow.hook.SluiceHook",
                "hook-name": integration,
            }
        ],
        "integrations": [{"integration-name": integration, "external-doc-url": "", "tags": []}],
        "hooks": [{"integration-name": integration, "python-modules": ["sluice.airflow.hook"]}],
        "operators": [
            {"integration-name": integration, "python-modules": ["sluice.airflow.operators"]}
        ],
        "sensors": [
            {"integration-name": integration, "python-modules": ["sluice.airflow.waiting"]}
        ],
        "triggers": [
            {"integration-name": integration, "python-modules": ["sluice.airflow.waiting"]}
        ],
        "extra-links": ["sluice.airflow.operators.JobLink"],
    }
