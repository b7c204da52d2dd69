"""What can go wrong with the archive, beside what can go wrong with any log of windows
(`sluice.relay.errors`).
"""

from __future__ import annotations

from sluice.relay.errors import RelayError


class ArchiveConflictError(RelayError):
    """Another process has changed the archive meanwhile: what was to be done is done, or has to be
    begun anew.
    """

    transient = True
    way_out = "end the other process that writes into the same archive"
