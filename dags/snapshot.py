"""Define the DAG ``snapshot``: put a snapshot of all tables into the archive; restores begin there.

It makes one every `[archive] snapshots-every`, unless a younger one is there. Triggered with a
form, it makes one at once: `plan` reports what will be done and what prevents it. `work` is a job:
killed, or triggered again with the same values, it continues with what is left; `sluice jobs` shows
how far it is, pauses it, and cancels it.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.dag_factory import dag_per_pipeline, job_tasks
from sluice.etl.settings.pipelines import NamedPipeline

PARAMS = {
    "source": Param(
        None,
        type=["null", "string"],
        title="Made from",
        examples=["downstream", "tidb", "archive"],
        description=(
            "downstream (at its checkpoint), tidb, archive (the youngest snapshot rolled forward),"
            " or the URL of a folder that Dumpling wrote. Empty: [archive] snapshots-from."
        ),
    ),
    "full": Param(
        default=False,
        type="boolean",
        title="Read every table",
        description="Also those that have not changed since the youngest snapshot.",
    ),
    "plan_only": Param(
        default=False,
        type="boolean",
        title="Only plan",
        description="Show what would be done, and what prevents it. Nothing is written.",
    ),
    "escape_backslash": Param(
        default=True,
        type="boolean",
        title="The dump has backslash escapes",
        description="Dumpling's --escape-backslash.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    job_tasks(pipeline, "snapshot")


dag_per_pipeline(
    "snapshot", __doc__, wire, params=PARAMS,
    schedule=lambda pipeline: pipeline.schedule("archive", "snapshots-every", "1d"),
)  # fmt: skip
