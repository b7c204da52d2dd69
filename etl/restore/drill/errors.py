"""Define the errors of drills: that none is possible, and that one failed."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["DrillError", "DrillFailedError"]


class DrillError(RequestError):
    """There is nothing to try yet, or not as it was asked for. Nothing has changed."""

    hint = "`sluice archive status` shows the restorable range; `sluice snapshot make` makes one"


class DrillFailedError(SluiceError):
    """Restoring was tried, and failed: so it would if it were needed."""

    hint = "see to what it names, then have it tried again: `sluice drill`"
