"""What hinders that past windows are applied again."""

from __future__ import annotations

from errors import RequestError


class ReapplyError(RequestError):
    """It can't be done as it was asked for; says why and what can. Nothing has changed."""
