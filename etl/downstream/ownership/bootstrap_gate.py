"""Keep landing and applying waiting while a job makes the downstream a replica.

Landing would begin now, after what the copy has, and applying would write beside it. Both wait for
the job's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.errors import SluiceError
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCELLING, PAUSING, RUNNING, Jobs, WriteScope

__all__ = ["BootstrapPending", "require_bootstrap_done"]


class BootstrapPending(SluiceError):
    """A job makes the downstream a replica, and isn't over; names it."""

    transient = True
    hint = "replication begins by itself once the job is done: `sluice jobs`"


def require_bootstrap_done(
    relay: RelayLog, downstream: str, has_checkpoint: Callable[[], bool]
) -> None:
    """Raise CopyAwaitedError while a job that touches all of `downstream` has no checkpoint.

    `downstream`: a `downstream_name`. `has_checkpoint` is called only if there is such a job.
    Raises what it raises, RelayError, OSError.
    """
    whole = WriteScope(downstream)
    found = [
        job
        for job in Jobs.for_pipeline(relay).overlapping(whole)
        if job.spec.touches.tables is None
    ]
    if not found or has_checkpoint():
        return
    status = found[0].status()
    if status.state in (RUNNING, PAUSING, CANCELLING):
        hint = BootstrapPending.hint
    else:
        name = status.spec.id
        hint = (
            f"`sluice jobs resume {name}` goes on with it, `sluice jobs cancel {name}` gives it up"
        )
    percent = status.progress.percent
    done = "" if percent is None else f", {percent} % are done"
    raise BootstrapPending(
        f"the job {status.spec} is {status.state}{done}, and there is no checkpoint yet",
        hint=hint,
    )
