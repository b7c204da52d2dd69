"""The verification at the end of `sluice run`: both sides are equal; somebody changes one value in the replica; it is
found, and made right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from embedded.copies import persistently
from embedded.damage import Wrong, spoil
from embedded.launch import Site, connect
from embedded.viewer import Viewer
from etl import load_settings
from etl.backfill import BackfillSummary, run_backfill
from etl.verify import VerifyRequest, VerifySummary, create_verify, run_verify
from etl.verify.repair import create_repair
from relay.jobs import Runner

_BY = "sluice run"


def verify(site: Site, viewer: Viewer, *tables: str) -> VerifySummary:
    """Compare tables (all without names) on both sides at the checkpoint, by the job that `sluice verify` runs. Raises
    as `etl.verify.run_verify`.
    """
    settings = load_settings(site.config)
    job = persistently(viewer, lambda: create_verify(settings, VerifyRequest(tables), _BY))
    return persistently(viewer, lambda: run_verify(settings, job.id, Runner(_BY)))


def spoil_one(site: Site, tables: Mapping[str, int]) -> Wrong | None:
    """Change one value in MariaDB, in the largest of `tables` (rows by name) that suits; None if none does."""
    with contextlib.closing(connect(site)) as database:
        return spoil(database, tables)


def repair(site: Site, viewer: Viewer, found: VerifySummary) -> BackfillSummary:
    """Have a backfill bring the rows that differ, as `sluice verify --repair --apply` does. Raises as
    `etl.backfill.run_backfill`.
    """
    settings = load_settings(site.config)
    job = persistently(viewer, lambda: create_repair(settings, found, _BY))
    return persistently(viewer, lambda: run_backfill(settings, job.id, Runner(_BY)))
