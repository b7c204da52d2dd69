"""Define the DAG ``restore_drill``: try a restore before it is needed.

It runs every `[archive] drills-every`, weekly by default, unless one has run meanwhile. A drill
restores some tables as of a moment, both chosen at random, into databases of their own, verifies
them, drops them, and records how long it took. One that fails fails the run: so would a restore.
Triggered by hand it runs at once.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.dag_factory import check_task, dag_per_pipeline, moment_params
from sluice.etl.settings.pipelines import NamedPipeline

PARAMS = {
    "tables": Param(
        5, type="integer", minimum=1, description="Maximum number of tables, chosen at random."
    ),
    "max_mb": Param(
        10_000,
        type="integer",
        minimum=1,
        description=(
            "Maximum MB of rows in these tables together, roughly; one table is restored whatever"
            " its size."
        ),
    ),
    **moment_params(
        "at",
        "As of",
        "This moment: a TSO or a time (UTC). Empty: any that can be restored, chosen at random.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    check_task(pipeline, "drill", task_id="drill")


dag_per_pipeline(
    "restore_drill", __doc__, wire, params=PARAMS,
    schedule=lambda pipeline: pipeline.schedule("archive", "drills-every", "7d"),
)  # fmt: skip
