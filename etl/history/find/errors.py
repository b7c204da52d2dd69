"""Define the errors of searches."""

from __future__ import annotations

from sluice.errors import RequestError


class FindError(RequestError, ValueError):
    """An impossible search; the message names the part that is."""


class ConditionError(FindError):
    """A condition that can't be read, or that makes no sense for a column."""

    hint = (
        "conditions are comparisons of columns with constants or columns (= <> < <= > >= <=> IN"
        " BETWEEN LIKE IS NULL), with AND, OR, NOT and parentheses; old.c and new.c are a column"
        " before and after the change"
    )


class SearchDeadlineError(FindError):
    """A search that a page waits for has used up its time."""

    hint = "narrow the time or the tables; `sluice find` with the same --where has no time limit"
