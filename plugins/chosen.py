"""The pipeline that a page is about: `?pipeline=` names it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from etl.settings import Settings, load_settings

__all__ = ["Chosen", "chosen"]


def chosen(pipeline: Annotated[str, Query(max_length=200)] = "") -> Settings:
    """The settings of the pipeline."""
    return load_settings()


Chosen = Annotated[Settings, Depends(chosen)]
"""A route's parameter."""
