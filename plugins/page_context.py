"""Serve what every page shows around itself: the pipelines, the user and the user's permissions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sluice.etl.settings.pipelines import pipelines
from sluice.pages.protocol import KINDS
from sluice.plugins.auth import Viewer, may_read_rows, may_trigger, username
from sluice.plugins.pipeline_param import PipelineParam, readable

__all__ = ["router"]

router = APIRouter()


@router.get("/context")
def page_context(request: Request, user: Viewer, chosen: PipelineParam) -> dict[str, Any]:
    """Return the frame's document; it is not cached, since it differs between users.

    `dags`: each kind's DAG, its id and the user's permission; the page asks Airflow for the rest.
    """
    ids = {kind: chosen.dag_id(kind) for kind in KINDS}
    return {
        "user": username(user),
        "pipeline": chosen.name,
        "pipelines": [
            {"name": each.name, "title": each.name or "(sluice.toml)"}
            for each in readable(request, user)
        ],
        "problems": pipelines().problems(),
        "rows": may_read_rows(user),
        "dags": {
            kind: {"id": dag_id, "may": may_trigger(request, user, dag_id)}
            for kind, dag_id in ids.items()
        },
    }
