"""Show the state of replication in one view: for `sluice top`, the pages, and the metrics."""

from sluice.etl.operate.overview.build import overview
from sluice.etl.operate.overview.model import (
    IDLE,
    PAUSED,
    STATES,
    STOPPED,
    UNKNOWN,
    WAITING,
    WORKING,
    ArchivePart,
    DownstreamPart,
    LandingPart,
    Overview,
    PumpPart,
    RelayPart,
    VerifiedPart,
)
from sluice.etl.operate.overview.sizes import StorageSizes, latest_sizes
from sluice.etl.operate.overview.sources import KnownCheckpoint, known_checkpoint

__all__ = [
    "IDLE",
    "PAUSED",
    "STATES",
    "STOPPED",
    "UNKNOWN",
    "WAITING",
    "WORKING",
    "ArchivePart",
    "DownstreamPart",
    "KnownCheckpoint",
    "LandingPart",
    "Overview",
    "PumpPart",
    "RelayPart",
    "StorageSizes",
    "VerifiedPart",
    "known_checkpoint",
    "latest_sizes",
    "overview",
]
