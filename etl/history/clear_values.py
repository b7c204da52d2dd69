"""Refuse to show clear values of a pipeline that masks columns."""

from __future__ import annotations

from sluice.errors import RequestError
from sluice.etl.settings import Settings

__all__ = ["ClearValuesError", "check_clear_values"]


class ClearValuesError(RequestError):
    """The pipeline masks columns, and what is asked for would show their clear values."""

    hint = (
        "the relay log and the archive hold clear values: whoever may see these asks with a"
        " settings file of the same [relay] and [archive] that masks nothing (-c)"
    )


def check_clear_values(settings: Settings, what: str) -> None:
    """Raise ClearValuesError if a rule masks columns; `what` shows values, begins the message."""
    rule = settings.filters.masking_rule
    if rule is not None:
        raise ClearValuesError(f"{what} would show clear values of columns that {rule.text} masks")
