"""Errors of a request to copy rows again."""

from __future__ import annotations

from sluice.errors import RequestError


class BackfillError(RequestError):
    """A backfill can't begin, or can't go on; it has the reason, and the way out.

    What it has done so far is whole.
    """
