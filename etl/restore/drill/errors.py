"""Why there is no drill, and what one that failed says."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["DrillError", "DrillFailedError"]


class DrillError(RequestError):
    """There is nothing to try yet, or not as it was asked for. Nothing has changed."""

    hint = (
        "`sluice archive status` says what can be restored; `sluice snapshot make` makes a snapshot"
    )


class DrillFailedError(SluiceError):
    """Restoring was tried, and failed: so it would if it were needed."""

    hint = "see to what it names, then have it tried again: `sluice drill`"
