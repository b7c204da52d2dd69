"""What can be wrong with what is to be copied again."""

from __future__ import annotations

from sluice.errors import RequestError


class BackfillError(RequestError):
    """A backfill can't begin, or can't go on; says why, and the way out.

    What it has done so far is whole.
    """
