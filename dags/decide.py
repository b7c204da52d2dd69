"""Define the DAG ``decide``: ask a person what to do about what the downstream refuses.

It is there for pipelines with `[airflow] decisions`, in an Airflow whose assets have a state store
(3.3). A run begins when `land` or `apply` has stopped until an operator acts. `ask` shows the
reason and its hint under Required actions, with what can be decided: accept a refused batch, skip a
transaction or a DDL, or wait, for the cause is repaired elsewhere. `act` carries the decision out,
with the person's name. Then unpause the DAG `replicate`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Asset, AssetWatcher, Param, task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.airflow.versions import AirflowSkipException, CronPartitionTimetable
from sluice.airflow.waiting import SluiceStoppedTrigger
from sluice.etl.settings.pipelines import NamedPipeline

ACCEPT, WAIT = "Accept the refused batch", "Wait"
ACTIONS = {
    ACCEPT: "accept",
    "Skip the transaction": "skip-txn",
    "Skip the DDL": "skip-ddl",
}
"""Options with the actions of the DAG `operate`."""
FIELDS = {
    "commit_ts": Param(
        None,
        type=["null", "string"],
        title="Commit timestamp",
        description="Of the transaction or DDL that is skipped, as the message has it.",
    ),
    "why": Param(None, type=["null", "string"], title="Why", description="Kept with the decision."),
}
BODY = """\
{% set found = ti.xcom_pull(task_ids='look') %}
```text
{{ found.message }}

hint: {{ found.hint }}
```
"""


class AskWhatToDo(HITLOperator):  # type: ignore[misc] # Airflow is untyped
    """Offer to accept a batch only if one is refused."""

    options: list[str]

    def execute(self, context: Any) -> Any:
        """Ask a person."""
        if not context["ti"].xcom_pull(task_ids="look")["refusal"]:
            self.options = [option for option in self.options if option != ACCEPT]
        return super().execute(context)


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""

    @task
    def look() -> dict[str, Any]:
        found: dict[str, Any] | None = call_task(pipeline, "why_stopped")
        if found is None:
            raise AirflowSkipException("replication goes on")
        return found

    @task
    def act(found: dict[str, Any], answer: dict[str, Any]) -> str:
        (option,), fields = answer["chosen_options"], answer["params_input"]
        if option == WAIT:
            raise AirflowSkipException("nothing is done")
        action = ACTIONS[option]
        form = {
            "action": action,
            "value": found["refusal"] if option == ACCEPT else fields.get("commit_ts") or "",
            "sql": "",
            "why": fields.get("why") or "",
            "by": f"airflow {(answer['responded_by_user'] or {}).get('name', '')}".strip(),
        }
        outcome: str = call_task(pipeline, "operate", form=form)
        print(outcome)
        return outcome

    found = look()
    ask = AskWhatToDo(
        task_id="ask",
        subject="{{ ti.xcom_pull(task_ids='look').what }} has stopped: what is to be done?",
        body=BODY,
        options=[*ACTIONS, WAIT],
        params=FIELDS,
        execution_timeout=None,  # a person may take their time
        # an answer before the scheduler has seen the task park fails the attempt: ask again
        retries=3,
        retry_delay=timedelta(seconds=5),
    )
    found >> ask
    act(found, ask.output)


def stopped(pipeline: NamedPipeline) -> Asset:
    """Return the asset that has an event when the pipeline has stopped."""
    trigger = SluiceStoppedTrigger(pipeline.name)
    return Asset(
        f"sluice://{pipeline.name or 'sluice.toml'}/stopped",
        watchers=[AssetWatcher(name="stopped", trigger=trigger)],
    )


dag_per_pipeline(
    "decide", __doc__, wire,
    schedule=lambda pipeline: [stopped(pipeline)],
    exists=lambda pipeline: bool(CronPartitionTimetable and pipeline.airflow.decisions),
    default_args={"retries": 0},
)  # fmt: skip
