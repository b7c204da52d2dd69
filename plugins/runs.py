"""Read and trigger runs of Airflow's DAGs, with their values."""

from __future__ import annotations

from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from sluice.errors import RequestError

__all__ = ["NoRunError", "run_conf", "trigger"]


class NoRunError(RequestError):
    """There is no run that could be repeated."""


def run_conf(dag_id: str, run_id: str) -> dict[str, Any]:
    """Return the values that a run was triggered with, {} if Airflow has removed the run."""
    with create_session() as session:
        found = session.scalars(
            select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        ).all()
    return dict(found[0] or {}) if found else {}


def trigger(dag_id: str, conf: dict[str, Any], by: str) -> str:
    """Have a DAG run with these values, as `by` asked; the run's id."""
    run = trigger_dag(
        dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=by, conf=conf
    )
    if run is None:
        raise NoRunError(f"Airflow made no run of the DAG {dag_id}", hint="trigger it in Airflow")
    return str(run.run_id)
