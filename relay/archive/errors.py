"""Errors of the archive, in addition to those of any log of windows (`sluice.relay.errors`)."""

from __future__ import annotations

from sluice.relay.errors import RelayError


class ArchiveConflictError(RelayError):
    """Another process has changed the archive meanwhile.

    The change is made already, or has to be started over.
    """

    transient = True
    hint = "end the other process that writes into the same archive"
