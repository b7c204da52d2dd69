"""Define the errors for which no window can be planned."""

from __future__ import annotations

from sluice.errors import SluiceError


class PumpUnavailableError(SluiceError):
    """A pump that counts can't be reached, or none is registered.

    Waiting is safe; planning windows without the pump is not.
    """

    transient = True
    hint = (
        "start the pump again, or, once all it holds has been landed, set it offline: `sluice pumps"
        " offline`"
    )


class UnreadPumpError(SluiceError):
    """A pump went offline with binlogs that were not landed; names the pump and the range."""

    hint = (
        "bring the pump's disk back and start the pump, or accept the loss: `sluice pumps forget`"
    )


class UpstreamBehindError(SluiceError):
    """PD's timestamps are older than the landed ones: new commits below would be passed over."""

    hint = "point pd-urls at the PD of the cluster that was landed"


class CommitsPurgedError(SluiceError):
    """A pump has already removed commits that were not landed; names pump and timestamps."""

    hint = (
        "copy the upstream's data to the downstream again, then begin with an empty relay log and a"
        " checkpoint at the copy's timestamp"
    )


class MissedCommitError(SluiceError):
    """A pump received a commit after landing had passed it; names pump and transaction."""

    hint = "bring its rows with `sluice verify` and --repair, then `sluice txn skip`"


class ReplicaDiffersError(SluiceError):
    """Two pumps captured different changes of one range; names both, and the range."""

    hint = "compare the downstream with the upstream by `sluice verify`, then `sluice resume`"
