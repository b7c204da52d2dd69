"""Describe an expectation in a sentence; Great Expectations renders those that are its own."""

from __future__ import annotations

from string import Template
from typing import Any

from great_expectations.core import ExpectationValidationResult
from great_expectations.render.renderer.inline_renderer import InlineRenderer

from sluice.expectations.gx.examples import as_text

__all__ = ["sentence"]


def sentence(result: ExpectationValidationResult) -> str:
    """Return the sentence in plain text, nothing of it escaped."""
    config: Any = result.expectation_config
    if says := (config.meta or {}).get("says"):
        return str(says)
    try:
        (content, *_) = InlineRenderer(render_object=config).get_rendered_content()
        value = content.value.to_json_dict()
        params = {
            key: as_text(one.get("value")) for key, one in (value.get("params") or {}).items()
        }
        text = Template(value.get("template") or "").safe_substitute(params).strip()
    except Exception:  # Great Expectations': a missing sentence is no harm
        text = ""
    column = config.kwargs.get("column")
    if not text:
        given = ", ".join(
            f"{key} = {as_text(one)}" for key, one in config.kwargs.items() if key != "batch_id"
        )
        return f"{config.type} ({given})"
    return text if not column or column in text else f"{column} {text}"
