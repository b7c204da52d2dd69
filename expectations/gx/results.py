"""Convert Great Expectations' results into lines of a page, and into its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from great_expectations.core import ExpectationValidationResult
from great_expectations.render.renderer.inline_renderer import InlineRenderer

from sluice.expectations.docs_pages import ExpectationLine
from sluice.expectations.gx.examples import as_text
from sluice.expectations.gx.runner import SuiteResult, observed

__all__ = ["json_of", "lines_of"]


def lines_of(looked: SuiteResult) -> list[ExpectationLine]:
    """Return one an expectation, in the suite's order."""
    return [
        ExpectationLine(
            bool(result.success),
            sentence(result),
            one.severity,
            one.why,
            observed(result),
            _examples(result),
        )
        for one, result in zip(looked.suite.expectations, looked.result.results, strict=True)
    ]


def json_of(looked: SuiteResult) -> str:
    """Return the validation result, as Great Expectations writes it."""
    return json.dumps(looked.result.to_json_dict(), ensure_ascii=False, indent=1) + "\n"


def _examples(result: ExpectationValidationResult) -> Sequence[Mapping[str, Any]]:
    found: Any = result.result
    rows = found.get("examples") or found.get("partial_unexpected_index_list")
    if rows:
        return [
            {name: "NULL" if value is None else value for name, value in row.items()}
            for row in rows
        ]
    values = dict.fromkeys(map(str, found.get("partial_unexpected_list") or []))
    return [] if result.success else [{"value": value} for value in values]


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
