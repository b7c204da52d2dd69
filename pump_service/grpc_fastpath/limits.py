"""Bound what clients can make the fast path hold."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.pump_service.grpc_fastpath.places import MAX_BYTES

MAX_OTHER_MESSAGE_BYTES = 64 << 10
"""The request of a call other than WriteBinlog, also when it is expanded: all of them are a few
numbers.
"""


@dataclass(frozen=True, slots=True)
class FastPathLimits:
    """Bounds that keep a broken or hostile client from taking the process down.

    Bytes unless another unit is given.
    """

    message: int = 2**31 - 1  # one WriteBinlogReq; gRPC's own clients stop at this size
    header_block: int = 65536
    streams: int = 4096  # open, unanswered, and answered but unsent calls of a connection (count)
    calls: int = 32  # of them others than WriteBinlog (count)
    all_calls: int = 256  # the same over all connections (count)
    # received parts of unfinished messages over all connections, but for the oldest one
    partial: int = 24 << 20
    share: int = 1 << 20  # of them a connection may have so many in any case
    stalled_s: float = 60.0  # an upload of which nothing comes for so long is given up
    # of all that is kept for connections, but for complete calls and what `partial` counts
    held: int = MAX_BYTES
    queued: int = 64 << 20  # handed to the store and not yet durable, over all connections
    stream_window: int = 1 << 20
    own_frames: int = 200  # that carry no call, a second, of a connection in any case (count)
    # more of them, a second over all connections; beyond, one isn't read for a while (count)
    idle_frames: int = 10_000
    over_s: float = 10.0  # a connection that sends more than is allowed for so long is ended
    first_call_s: float = 30.0  # a connection without a first call is closed
    idle_s: float = 3600.0  # a connection without calls is asked to go, and closed
