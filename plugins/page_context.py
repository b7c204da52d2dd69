"""Serve what every page shows around itself: the pipelines, the user and the user's permissions."""

from __future__ import annotations

from typing import Any

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter
from sqlalchemy import select

from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.plugins.auth import Viewer, may_read_rows, may_trigger, username
from sluice.plugins.pipeline_param import PipelineParam, readable

__all__ = ["KINDS", "router"]

router = APIRouter()

KINDS = (
    "replicate",
    "operate",
    "archive",
    "snapshot",
    "backfill",
    "bootstrap",
    "quality",
    "restore",
    "restore_drill",
    "verify",
)
"""The DAGs that pages lead to."""


@router.get("/context")
def page_context(user: Viewer, chosen: PipelineParam) -> dict[str, Any]:
    """Return the frame's document; it is not cached, since it differs between users."""
    return {
        "user": username(user),
        "pipeline": chosen.name,
        "pipelines": [
            {"name": each.name, "title": each.name or "(sluice.toml)"} for each in readable(user)
        ],
        "problems": pipelines().problems(),
        "rows": may_read_rows(user),
        "dags": _dags(user, chosen),
    }


def _dags(user: Any, pipeline: NamedPipeline) -> dict[str, dict[str, Any]]:
    """Return each kind's DAG: its id, its presence, its pause, and the user's permission."""
    ids = {kind: pipeline.dag_id(kind) for kind in KINDS}
    query = select(DagModel.dag_id, DagModel.is_paused).where(
        DagModel.dag_id.in_(ids.values()), ~DagModel.is_stale
    )
    with create_session() as session:
        paused = dict(session.execute(query).tuples().all())
    return {
        kind: {
            "id": id,
            "there": id in paused,
            "paused": bool(paused.get(id)),
            "may": may_trigger(user, id),
        }
        for kind, id in ids.items()
    }
