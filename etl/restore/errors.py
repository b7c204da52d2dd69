"""Define the errors of restores."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["RestoreError", "RestoreMismatchError"]


class RestoreError(RequestError):
    """An impossible request; the message has the reason and a way out. Nothing has changed."""


class RestoreMismatchError(SluiceError):
    """What was restored isn't what was computed independently; names the tables.

    They are there to be looked at.
    """

    hint = (
        "look at the tables that are named: another session wrote there, or it is a defect of"
        " Sluice. `sluice jobs resume` verifies again, `sluice jobs cancel` removes what was"
        " restored"
    )
