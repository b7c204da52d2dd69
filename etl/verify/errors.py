"""Define the errors of verification and of reapplying past windows."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError


class VerifyError(SluiceError):
    """It can't be determined whether both sides are equal."""

    hint = "do what the message asks for, and verify again"


class ReplayRangeError(RequestError):
    """An impossible request that changed nothing; the message has the reason and a way out."""
