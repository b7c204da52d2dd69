"""Resolve the pipeline that a page is about: `?pipeline=` names it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request, status

from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.plugins.auth import Viewer, may_read

__all__ = ["PipelineParam", "pipeline_for", "readable"]


def readable(request: Request, user: Any) -> list[NamedPipeline]:
    """Return the pipelines whose DAG `replicate` the user may see."""
    return [
        each for each in pipelines().values() if may_read(request, user, each.dag_id("replicate"))
    ]


def pipeline_for(request: Request, user: Any, name: str) -> NamedPipeline:
    """Return the pipeline of that name, or the user's first one without a name.

    Raises HTTPException 403 if the user may not see its DAG `replicate`, SettingsError if there is
    no such pipeline.
    """
    found = pipelines()
    if name in found and name:
        dag_id = found[name].dag_id("replicate")
        if not may_read(request, user, dag_id):
            raise _refused(f"the DAG {dag_id}")
        return found[name]
    mine = readable(request, user)
    if name and len(mine) < len(found):  # names are shown only to users with access
        raise _refused(f"a pipeline {name!r}")
    if name or not found:
        return found.named(name)
    if not mine:
        raise _refused("the DAG of any pipeline")
    return mine[0]


def _refused(what: str) -> HTTPException:
    return HTTPException(status.HTTP_403_FORBIDDEN, f"Your role in Airflow can't see {what}.")


def _pipeline(
    request: Request, user: Viewer, pipeline: Annotated[str, Query(max_length=200)] = ""
) -> NamedPipeline:
    return pipeline_for(request, user, pipeline)


PipelineParam = Annotated[NamedPipeline, Depends(_pipeline)]
"""A route's parameter: its name, and the ids of its DAGs."""
