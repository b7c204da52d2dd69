"""The verification at the end of `sluice run`: both sides are equal.

One value in the replica is changed; it is found, and made right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from sluice.devstack.bootstrap_demo import with_retries
from sluice.devstack.damage import CorruptedValue, corrupt_one_value
from sluice.devstack.launch import StackPaths, connect
from sluice.devstack.progress_view import Observer
from sluice.etl import load_settings
from sluice.etl.copy.backfill import BackfillSummary, run_backfill
from sluice.etl.verify import VerifyRequest, VerifySummary, create_verify, run_verify
from sluice.etl.verify.repair import create_repair
from sluice.relay.jobs import Runner

_REQUESTER = "sluice run"


def verify(site: StackPaths, viewer: Observer, *tables: str) -> VerifySummary:
    """Compare tables (all without names) on both sides at the checkpoint.

    By the job that `sluice verify` runs. Raises as `sluice.etl.verify.run_verify`.
    """
    settings = load_settings(site.config)
    job = with_retries(viewer, lambda: create_verify(settings, VerifyRequest(tables), _REQUESTER))
    return with_retries(viewer, lambda: run_verify(settings, job.id, Runner(_REQUESTER)))


def corrupt_and_find(site: StackPaths, tables: Mapping[str, int]) -> CorruptedValue | None:
    """Change one value in MariaDB, in the largest of `tables` (rows by name) that suits.

    None if none does.
    """
    with contextlib.closing(connect(site)) as database:
        return corrupt_one_value(database, tables)


def repair(site: StackPaths, viewer: Observer, found: VerifySummary) -> BackfillSummary:
    """Run a backfill of the rows that differ, as `sluice verify --repair --apply` does.

    Raises as `sluice.etl.copy.backfill.run_backfill`.
    """
    settings = load_settings(site.config)
    job = with_retries(viewer, lambda: create_repair(settings, found, _REQUESTER))
    return with_retries(viewer, lambda: run_backfill(settings, job.id, Runner(_REQUESTER)))
