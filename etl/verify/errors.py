"""What can go wrong with verifying."""

from __future__ import annotations

from errors import SluiceError


class VerifyError(SluiceError):
    """Nothing can be said about whether both sides are equal."""

    way_out = "do what the message asks for, and verify again"
