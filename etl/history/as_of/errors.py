"""Define the errors of tables that can't be computed as of a moment."""

from __future__ import annotations

from typing import ClassVar

from sluice.errors import SluiceError


class AsOfError(SluiceError):
    """A table as of a moment that can't be computed exactly; names the table, and where it ends."""

    hint = (
        "ask for another moment, or begin with a snapshot that was made after it: `sluice snapshot"
        " make`"
    )
    exit_code: ClassVar[int] = 1
