"""Define the errors of making a snapshot."""

from __future__ import annotations

from sluice.errors import RequestError


class SnapshotError(RequestError):
    """A snapshot can't be made, or not in this way; the message has the reason and a way out.

    Nothing was changed.
    """
