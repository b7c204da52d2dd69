"""What every page shows around itself: the pipelines there are, who looks, and what that person may do."""

from __future__ import annotations

from typing import Any

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter
from sqlalchemy import select

from plugins.access import Reader, may_trigger, name_of

__all__ = ["KINDS", "dags_for", "router"]

router = APIRouter()

KINDS = ("replicate", "operate", "archive", "base", "backfill", "bootstrap", "restore", "restore_drill")
"""The DAGs that pages link to."""


@router.get("/context")
def context(user: Reader) -> dict[str, Any]:
    """Not cached: it is another one for everybody."""
    return {
        "user": name_of(user),
        "pipelines": [{"name": "", "title": "sluice"}],
        "pipeline": "",
        "dags": dags_for(user),
    }


def dags_for(user: Any) -> dict[str, dict[str, Any]]:
    """By kind: the DAG's id, whether Airflow has it, whether it is paused, and whether the person may trigger it."""
    ids = {kind: kind for kind in KINDS}
    with create_session() as session:
        found = dict(
            session.execute(select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(ids.values()))).all()
        )
    return {
        kind: {
            "id": dag_id,
            "there": dag_id in found,
            "paused": bool(found.get(dag_id)),
            "may": may_trigger(user, dag_id),
        }
        for kind, dag_id in ids.items()
    }
