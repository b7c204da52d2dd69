"""Why no window can be planned."""

from __future__ import annotations

from sluice.errors import SluiceError


class PumpUnavailableError(SluiceError):
    """A pump that counts can't be reached, or none is registered: no window can be planned. Waiting is safe, going on
    without it is not."""

    transient = True
    way_out = "start the pump again, or, once all it holds has been landed, set it offline: `sluice pumps offline`"


class UnreadPumpError(SluiceError):
    """A pump went offline with binlogs that were not landed; names the pump and the range."""

    way_out = "bring the pump's disk back and start the pump, or accept the loss: `sluice pumps forget`"


class UpstreamBehindError(SluiceError):
    """PD's timestamps are older than what was landed: commits of the time until they catch up would be passed over."""

    way_out = "point pd-urls at the PD of the cluster that was landed"


class CommitsPurgedError(SluiceError):
    """A pump has already removed commits that were not landed; names the pump and the timestamps.
    Waiting won't help.
    """

    way_out = (
        "copy the upstream's data to the downstream anew, then begin with an empty relay log and a checkpoint at the"
        " copy's timestamp"
    )


class MissedCommitError(SluiceError):
    """A pump received a commit after landing had passed it; names the pump, the transaction and the ways out."""

    way_out = "bring its rows with `sluice verify` and --repair, then `sluice txn skip`"
