"""Define the DAG ``notify``: look every five minutes for what people should know.

It is there for pipelines with `[airflow] notify`. Tasks that fail call the notifier at once. This
one finds what no task fails with: a lag, a disk that is about to be full, rows that differ, and
that something is over. Each cause has one message when it begins and one when it is over, however
often it is met. A failed message is sent again by the next run.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import get_current_context, task

from sluice.airflow.agent_client import call
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.airflow.notifying import Notifier
from sluice.airflow.operators import log_hint
from sluice.etl.settings.pipelines import NamedPipeline


def wire(pipeline: NamedPipeline) -> None:
    """Build the task of one pipeline's DAG."""

    # The next run comes soon. A message of its own failure would come every five minutes.
    @task(retries=0, on_failure_callback=[log_hint])
    def look() -> list[str]:
        return Notifier(pipeline, "notify", call).look(get_current_context())

    look()


dag_per_pipeline(
    "notify", __doc__, wire,
    schedule=lambda _: timedelta(minutes=5),
    exists=lambda pipeline: bool(pipeline.airflow.notify),
)  # fmt: skip
