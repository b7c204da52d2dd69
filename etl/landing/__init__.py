"""Land windows: from the pumps into the relay log.

Main types: `WindowPlanner` in `planner` (how far the next window may reach without missing a
commit), `LandingSchema` in `schema` (tables and DDL of a window), `LandSummary` (what a run
landed). `extract` finds the row changes, in Spark's workers. `run_land` is the loop; a window is
landed when its record exists. See docs/explanation/no-loss.md. Names load on first use: Spark's
workers import modules of this package, and need no client.
May import: changes, downstream, settings, spark, relay, tidb, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.landing._cluster import NoBinlogsError, pumps_to_read, server_without_binlogs
    from sluice.etl.landing._report import LandedWindow, LandSummary
    from sluice.etl.landing.land import run_land
    from sluice.etl.landing.start_position import NoCheckpointError, position_without_checkpoint
    from sluice.etl.landing.upstream_schema import has_new_collations, version_at

__all__ = [
    "LandSummary",
    "LandedWindow",
    "NoBinlogsError",
    "NoCheckpointError",
    "has_new_collations",
    "position_without_checkpoint",
    "pumps_to_read",
    "run_land",
    "server_without_binlogs",
    "version_at",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "LandSummary": "sluice.etl.landing._report",
        "LandedWindow": "sluice.etl.landing._report",
        "NoBinlogsError": "sluice.etl.landing._cluster",
        "pumps_to_read": "sluice.etl.landing._cluster",
        "server_without_binlogs": "sluice.etl.landing._cluster",
        "NoCheckpointError": "sluice.etl.landing.start_position",
        "has_new_collations": "sluice.etl.landing.upstream_schema",
        "run_land": "sluice.etl.landing.land",
        "version_at": "sluice.etl.landing.upstream_schema",
        "position_without_checkpoint": "sluice.etl.landing.start_position",
    },
)
