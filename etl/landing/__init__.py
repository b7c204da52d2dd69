"""From the pumps to the relay log."""

from etl.landing.land import LandedWindow, run_land
from etl.landing.schema import version_at
from etl.landing.start import NoCheckpointError, without_checkpoint

__all__ = ["LandedWindow", "NoCheckpointError", "run_land", "version_at", "without_checkpoint"]
