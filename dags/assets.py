"""Define the DAG ``assets``: report each archived UTC day of tables as partitions of their assets.

It is there for pipelines with `[airflow] assets`, in an Airflow that has partitions (3.3). A run
begins each midnight (UTC), waits until the archive has all of the day before, and then has an event
for each table's asset, with that day as its partition key. DAGs that are scheduled on these assets
begin then. For days that were missed, start a backfill of this DAG.
"""

from __future__ import annotations

from sluice.airflow.assets import table_asset
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.airflow.versions import CronPartitionTimetable
from sluice.airflow.waiting import ARCHIVE, SluiceReached
from sluice.etl.settings.pipelines import NamedPipeline

DAY_BEFORE = CronPartitionTimetable and CronPartitionTimetable(
    "0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"
)


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    SluiceReached(
        task_id="archived",
        pipeline=pipeline.name,
        moment="{{ partition_key }}T23:59:59.999",
        place=ARCHIVE,
        outlets=[table_asset(pipeline.name, table) for table in pipeline.airflow.assets],
    )


dag_per_pipeline(
    "assets", __doc__, wire,
    schedule=lambda _: DAY_BEFORE,
    exists=lambda pipeline: bool(DAY_BEFORE and pipeline.airflow.assets),
    max_active_runs=7,  # days that wait for an archive that is behind
)  # fmt: skip
