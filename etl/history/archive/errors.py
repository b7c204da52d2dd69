"""Define the errors of archiving, beside those of the relay log and Spark."""

from __future__ import annotations

from sluice.errors import RequestError, SluiceError

__all__ = ["ArchiveGapError", "NotYetLandedError", "OtherClusterError"]


class NotYetLandedError(RequestError):
    """What is to be archived isn't in the relay log yet."""

    hint = "wait until landing has come so far (`sluice status`), or name an earlier moment"


class ArchiveGapError(SluiceError):
    """Windows that follow the archive's end are in the relay log no longer."""

    hint = (
        "bring the relay log's files back from a copy; or give [archive] url another place, where"
        " a new archive begins with what the relay log has, and make a snapshot: the old one stays"
        " readable"
    )


class OtherClusterError(SluiceError):
    """The archive keeps another cluster's past."""

    hint = "give [archive] url a place of its own for each cluster"
