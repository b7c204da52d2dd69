"""Define the DAG ``verify``: compare both sides at a live checkpoint, beside replication.

Replication does not pause. The DAG compares all tables every `[verify] every`, unless an operator
has meanwhile. Triggered with a form, it compares the tables of the form at once. `plan` records the
job, `compare` does it: killed, or triggered again with the same values, it continues with the
tables that are left; `sluice jobs` shows how far it is, pauses it, and cancels it. Rows that differ
fail the run, which names them; with `[airflow] differences = "event"` they only go into the event
of the asset `sluice://<pipeline>/verified`, which each comparison has that doesn't fail.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.assets import verified_asset
from sluice.airflow.dag_factory import dag_per_pipeline, job_tasks
from sluice.etl.settings.pipelines import NamedPipeline

PARAMS = {
    "tables": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Tables",
        description="schema.table upstream, one a line; * and ? stand for others. Empty: all.",
    ),
    "how": Param(
        "auto",
        type="string",
        enum=["auto", "upstream", "archive"],
        title="Compared with",
        description=(
            "upstream: TiDB as it was at the checkpoint; archive: what Spark computes from snapshot"
            " and archive; auto: TiDB if it can be asked."
        ),
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    job_tasks(
        pipeline,
        "verify",
        task_id="compare",
        fail_on_differences=pipeline.airflow.differences == "fail",
        outlets=[verified_asset(pipeline.name)],
    )


dag_per_pipeline(
    "verify", __doc__, wire, params=PARAMS,
    schedule=lambda pipeline: pipeline.schedule("verify", "every", ""),
)  # fmt: skip
