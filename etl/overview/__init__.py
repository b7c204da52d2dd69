"""How replication stands, in one look: for `sluice top`, the pages, and the metrics."""

from etl.overview.everybody import KnownCheckpoint, known_checkpoint
from etl.overview.look import overview
from etl.overview.parts import (
    IDLE,
    PAUSED,
    STATES,
    STOPPED,
    UNKNOWN,
    WAITS,
    WORKS,
    ArchivePart,
    DownstreamPart,
    LandingPart,
    Overview,
    PumpPart,
    RelayPart,
    VerifiedPart,
)
from etl.overview.sizes import Sizes, newest_sizes

__all__ = [
    "IDLE",
    "PAUSED",
    "STATES",
    "STOPPED",
    "UNKNOWN",
    "WAITS",
    "WORKS",
    "ArchivePart",
    "DownstreamPart",
    "KnownCheckpoint",
    "LandingPart",
    "Overview",
    "PumpPart",
    "RelayPart",
    "Sizes",
    "VerifiedPart",
    "known_checkpoint",
    "newest_sizes",
    "overview",
]
