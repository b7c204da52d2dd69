"""Define the DAG ``operate``: operators' actions on replication, for people in Airflow's UI.

Trigger it with an action. It does what the command `sluice` does: orders and overrides are kept
beside the relay log, and the tasks of ``replicate`` notice them while they run. What was done or
found is in the task's log, and its return value.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.etl.settings.pipelines import NamedPipeline

# As sluice.etl.operate.ACTIONS, which a test holds it to: Airflow reads this file again and again,
# and the pipeline is not loaded for it.
ACTIONS = [
    "show",
    "status",
    "pause",
    "resume",
    "run-until",
    "skip-txn",
    "skip-ddl",
    "replace-ddl",
    "remove-override",
    "accept",
    "jobs",
    "pause-job",
    "cancel-job",
    "takeover",
    "handover",
]


PARAMS = {
    "action": Param(
        "status",
        type="string",
        enum=ACTIONS,
        title="Action",
        description="What to do. `show`, `status` and `jobs` only look.",
    ),
    "value": Param(
        None,
        type=["null", "string"],
        title="Which",
        description=(
            "pause, resume: land, apply, or empty for both. run-until: a TSO or a time such as"
            " 2026-11-21T12:00:00+00:00 (UTC without a zone). skip-txn, remove-override: the"
            " commit_ts. skip-ddl, replace-ddl: the DDL's commit_ts or job id. show: where a window"
            " begins, or a commit_ts in it; empty for the newest. accept: the id of a refusal."
            " pause-job, cancel-job: the job's id, which `jobs` shows."
        ),
    ),
    "sql": Param(
        None,
        type=["null", "string"],
        format="multiline",
        title="SQL",
        description=(
            "replace-ddl: the statements that are executed in its place, separated by semicolons;"
            " empty for none. No passwords: parameters are shown to everyone who may see the run."
        ),
    ),
    "why": Param(None, type=["null", "string"], title="Why", description="Kept with an override."),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""

    @task
    def act(params: dict[str, Any] | None = None, run_id: str | None = None) -> str:
        wanted = params or {}
        form = {key: wanted[key] or "" for key in ("action", "value", "sql", "why")}
        outcome: str = call_task(pipeline, "operate", form=form | {"by": f"airflow {run_id}"})
        print(outcome)
        return outcome

    act()


dag_per_pipeline("operate", __doc__, wire, params=PARAMS, default_args={"retries": 0})
