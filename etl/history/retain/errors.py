"""Define the errors that prevent a removal."""

from __future__ import annotations

from sluice.errors import SluiceError

__all__ = ["NotArchivedError", "RetainError"]


class RetainError(SluiceError):
    """Something can't be removed, since what must be there instead isn't, or can't be read."""

    hint = "`sluice archive check` reads the whole archive; bring back what is damaged from a copy"


class NotArchivedError(RetainError):
    """What the archive holds of some windows isn't what the relay log holds.

    The relay log keeps them.
    """

    hint = (
        "the relay log still has these windows: move the archive elsewhere, and it is made again"
        " from there; or bring back what is damaged from a copy"
    )
