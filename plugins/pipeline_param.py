"""Resolve the pipeline that a page is about: `?pipeline=` names it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, status

from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.plugins.auth import Viewer, may_read, require_read

__all__ = ["PipelineParam", "SettingsParam", "pipeline_for", "readable"]


def readable(user: Any) -> list[NamedPipeline]:
    """Return the pipelines whose DAG `replicate` the user may see."""
    return [each for each in pipelines().values() if may_read(user, each.dag_id("replicate"))]


def pipeline_for(user: Any, name: str) -> NamedPipeline:
    """Return the pipeline of that name, or the user's first one without a name.

    Raises HTTPException 403 if the user may not see its DAG `replicate`, SettingsError if there is
    no such pipeline.
    """
    found = pipelines()
    if name in found and name:
        require_read(user, found[name].dag_id("replicate"))
        return found[name]
    mine = readable(user)
    if name and len(mine) < len(found):  # names are shown only to users with access
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Your role in Airflow can't see a pipeline {name!r}."
        )
    if name or not found:
        return found.named(name)
    if not mine:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, "Your role in Airflow can't see the DAG of any pipeline."
        )
    return mine[0]


def _pipeline(user: Viewer, pipeline: Annotated[str, Query(max_length=200)] = "") -> NamedPipeline:
    return pipeline_for(user, pipeline)


PipelineParam = Annotated[NamedPipeline, Depends(_pipeline)]
"""A route's parameter: its name, and the ids of its DAGs."""


def _settings(pipeline: PipelineParam) -> Settings:
    return pipeline.settings


SettingsParam = Annotated[Settings, Depends(_settings)]
"""A route's parameter: the settings of the pipeline. An error in them is shown instead of the page.
"""
