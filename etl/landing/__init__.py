"""From the pumps to the relay log."""

from etl.landing._report import LandedWindow, LandSummary
from etl.landing.land import run_land
from etl.landing.schema import has_new_collations, version_at
from etl.landing.start import NoCheckpointError, without_checkpoint

__all__ = [
    "LandSummary",
    "LandedWindow",
    "NoCheckpointError",
    "has_new_collations",
    "run_land",
    "version_at",
    "without_checkpoint",
]
