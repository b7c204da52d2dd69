"""How replication stands, in one look: for `sluice top`, the pages, and the metrics."""

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
    "LandingPart",
    "Overview",
    "PumpPart",
    "RelayPart",
    "VerifiedPart",
    "overview",
]
