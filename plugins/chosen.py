"""The pipeline that a page is about: `?pipeline=` names it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from etl.settings import Settings
from etl.settings.pipelines import NamedPipeline, pipelines

__all__ = ["Chosen", "ChosenPipeline"]


def _pipeline(pipeline: Annotated[str, Query(max_length=200)] = "") -> NamedPipeline:
    """The one that is named; the first if none is. Raises SettingsError."""
    found = pipelines()
    return found.named(pipeline) if pipeline or not found else next(iter(found.values()))


ChosenPipeline = Annotated[NamedPipeline, Depends(_pipeline)]
"""A route's parameter: its name, and the ids of its DAGs."""


def _settings(pipeline: ChosenPipeline) -> Settings:
    return pipeline.settings


Chosen = Annotated[Settings, Depends(_settings)]
"""A route's parameter: the settings of the pipeline. What is wrong with them is said instead of the page."""
