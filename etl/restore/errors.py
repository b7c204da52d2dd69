"""Define the errors of restores and of restore drills."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["DrillError", "DrillFailedError", "RestoreError", "RestoreMismatchError"]


class RestoreError(RequestError):
    """An impossible request; the message has the reason and a way out. Nothing has changed."""


class RestoreMismatchError(SluiceError):
    """Restored tables aren't what was computed independently; the message names them.

    They are there to be looked at.
    """

    hint = (
        "look at the tables that are named: another session wrote there, or it is a defect of"
        " Sluice. `sluice jobs resume` verifies again, `sluice jobs cancel` removes what was"
        " restored"
    )


class DrillError(RequestError):
    """No drill is possible yet, or not as requested. Nothing has changed."""

    hint = "`sluice archive status` shows the restorable range; `sluice snapshot make` makes one"


class DrillFailedError(SluiceError):
    """Restoring was tried, and failed: so it would if it were needed."""

    hint = "see to what it names, then have it tried again: `sluice drill`"
