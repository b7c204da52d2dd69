"""Define the DAG ``quality``: check whether the data meets its expectations.

It checks the suites that `sluice quality init` has proposed and people have edited, by Great
Expectations: on the downstream at its checkpoint while replication goes on, on the lake as of a
moment, or on a copy, and on the replication itself. The results are in the Data Docs. It runs by
itself at the interval and the hours of `[quality]`. An expectation's severity decides whether it
warns, fails the run, or pauses applying as well.
"""

from __future__ import annotations

from airflow.sdk import Param

from sluice.airflow.dag_factory import check_task, dag_per_pipeline, moment_params
from sluice.etl.settings.pipelines import NamedPipeline

PARAMS = {
    "on": Param(
        "downstream",
        enum=["downstream", "lake", "copy"],
        type="string",
        description="What to look at.",
    ),
    "suites": Param(
        [],
        type="array",
        items={"type": "string"},
        description=(
            "Only these, a line each: schema.table or replication, also with * and ?. Empty: all."
        ),
    ),
    **moment_params(
        "as_of",
        "As of",
        "Of the lake: as of this moment, a TSO or a time (UTC). Empty: where the archive ends.",
    ),
    "copy": Param(
        None,
        type=["null", "string"],
        description="Of a copy: a settings file (TOML) whose [downstream] says where it is.",
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""
    check_task(pipeline, "quality", task_id="look")


dag_per_pipeline(
    "quality", __doc__, wire, params=PARAMS,
    schedule=lambda pipeline: pipeline.schedule("quality", "every", ""),
)  # fmt: skip
