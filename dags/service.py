"""Define the DAGs ``service_1``, ``service_2``: replicate by tasks on two hosts, one standing by.

They are there for pipelines with `[airflow] service-queues`, one for each queue. The only task of
each does what `sluice replicate` does. One has the pipeline's lease, and lands and applies. The
others stand by, and one of them goes on when the lease hasn't been renewed for 15 s: it doesn't
wait until Airflow misses the heartbeats of a task whose host is gone. When a run is over, the next
run's task takes the lease over from it, and reattaches to its worker processes on the same host.
The DAG `replicate` watches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow.sdk import task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.etl.settings.pauses import span_ms
from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.etl.tasks.airflow_run import run_began_s


def wire(number: int, pipeline: NamedPipeline) -> None:
    """Build the task of one pipeline's DAG for its queue of this number, from 1."""

    @task(queue=pipeline.airflow.service_queues[number - 1])
    def replicate(dag_run: Any = None) -> None:
        call_task(
            pipeline,
            "serve_replication",
            name=f"service_{number}",
            run_seconds=span_ms(pipeline.airflow.run_time) / 1000,
            began_s=run_began_s(dag_run),
        )

    replicate()


def has_queue(number: int, pipeline: NamedPipeline) -> bool:
    """Return whether the pipeline has a queue of this number."""
    return number <= len(pipeline.airflow.service_queues)


for each in range(max((len(it.airflow.service_queues) for it in pipelines().values()), default=0)):
    dag_per_pipeline(
        f"service_{each + 1}", __doc__, partial(wire, each + 1),
        schedule=lambda _: "@continuous",
        exists=partial(has_queue, each + 1),
        max_consecutive_failed_dag_runs=1,  # an operator has to act first: the DAG pauses
    )  # fmt: skip
