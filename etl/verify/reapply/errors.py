"""What hinders that past windows are applied again."""

from __future__ import annotations

from sluice.errors import RequestError


class ReplayRangeError(RequestError):
    """It can't be done as it was asked for; says why and what can. Nothing has changed."""
