"""Apply landed windows: from the relay log to the downstream.

Main types: `WindowBatch` (windows that are written together), `BatchPrefetcher` (has the next batch
planned while the present one is written), `ApplySummary` (what a run applied). `run_apply` is the
loop, `apply_range` applies a range of the past. The checkpoint is the only state: any trouble with
the connection leads back to reading it. See docs/explanation/exactly-once.md. Names load on first
use: Spark's workers import modules of this package, and need no client.
May import: changes, downstream, settings, spark, relay, tidb, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.apply._prefetch import Prepare
    from sluice.etl.apply.prepare_windows import SparkPreparer
    from sluice.etl.apply.replay_range import OutsideReplayRange, ReplayRange, apply_range
    from sluice.etl.apply.run import ApplySummary, BatchReport, prepare_options, run_apply

__all__ = [
    "ApplySummary",
    "BatchReport",
    "OutsideReplayRange",
    "Prepare",
    "ReplayRange",
    "SparkPreparer",
    "apply_range",
    "prepare_options",
    "run_apply",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "ApplySummary": "sluice.etl.apply.run",
        "BatchReport": "sluice.etl.apply.run",
        "ReplayRange": "sluice.etl.apply.replay_range",
        "OutsideReplayRange": "sluice.etl.apply.replay_range",
        "Prepare": "sluice.etl.apply._prefetch",
        "SparkPreparer": "sluice.etl.apply.prepare_windows",
        "apply_range": "sluice.etl.apply.replay_range",
        "prepare_options": "sluice.etl.apply.run",
        "run_apply": "sluice.etl.apply.run",
    },
)
