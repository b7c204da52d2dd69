"""Define the errors of applying past windows again."""

from __future__ import annotations

from sluice.errors import RequestError


class ReplayRangeError(RequestError):
    """An impossible request that changed nothing; the message has the reason and a way out."""
