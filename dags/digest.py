"""Define the DAG ``digest``: send a digest of the last 24 hours once a day.

It is there for pipelines with `[airflow] digest`, which says when, and sends it by `[airflow]
notify`: lag, rows, windows, errors, the last verification, the restorable range, the day's jobs,
disks. Triggered by hand it is sent at once.
"""

from __future__ import annotations

from airflow.sdk import get_current_context, task

from sluice.airflow.agent_client import call
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.airflow.notifying import Notifier
from sluice.airflow.versions import CronTriggerTimetable
from sluice.etl.settings.pipelines import NamedPipeline


def wire(pipeline: NamedPipeline) -> None:
    """Build the task of one pipeline's DAG."""

    @task
    def send() -> str:
        return Notifier(pipeline, "digest", call).digest(get_current_context())

    send()


def daily(pipeline: NamedPipeline) -> CronTriggerTimetable:
    """Return the schedule of the setting."""
    cron, zone = pipeline.airflow.digest_schedule
    return CronTriggerTimetable(cron, timezone=zone)


dag_per_pipeline(
    "digest", __doc__, wire,
    schedule=daily,
    exists=lambda pipeline: bool(pipeline.airflow.digest),
)  # fmt: skip
