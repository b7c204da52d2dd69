"""What the commands about jobs do with each kind of job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._this_process import local_runner, pause_on_signals, print_paused

if TYPE_CHECKING:
    from sluice.etl.copy import BootstrapSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job

JobAction = Callable[["Settings", "Job"], int]


def print_bootstrap(summary: BootstrapSummary) -> int:
    """Print how a bootstrap ended; the exit code."""
    from sluice.relay.jobs import CANCELLED, PAUSED

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    if summary.state == CANCELLED:
        for line in summary.left:
            click.echo(f"stays    {line}")
        click.echo("cancelled: what was copied is taken back" + (", but for what is named" if summary.left else ""))
        return 1
    if summary.state == PAUSED:
        return print_paused()
    rate = summary.rows / max(summary.seconds, 1e-3)
    click.echo(
        f"{summary.tables} tables, {summary.rows_there:,} rows are downstream; {summary.rows:,} rows and"
        f" {summary.bytes / 1e6:,.1f} MB in {summary.seconds:,.1f} s ({rate:,.0f} rows/s). The checkpoint is at"
        f" {summary.ts}: replication goes on from there"
    )
    return 0


def _resume_bootstrap(settings: Settings, job: Job) -> int:
    from sluice.etl.copy import resume_bootstrap

    with pause_on_signals(settings, job.spec.kind), CopyProgress() as display:
        return print_bootstrap(resume_bootstrap(settings, job, local_runner("sluice jobs resume"), display.show))


def _cancel_bootstrap(settings: Settings, job: Job) -> int:
    from sluice.etl.copy import cancel_bootstrap

    print_bootstrap(cancel_bootstrap(settings, job, local_runner("sluice jobs cancel")))
    return 0


def _resume_reapply(settings: Settings, job: Job) -> int:
    from sluice.cli._reapply_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_reapply(settings: Settings, job: Job) -> int:
    from sluice.cli._reapply_job import cancel_job

    return cancel_job(settings, job)


def _resume_backfill(settings: Settings, job: Job) -> int:
    from sluice.cli._backfill_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_backfill(settings: Settings, job: Job) -> int:
    from sluice.cli._backfill_job import cancel_job

    return cancel_job(settings, job)


def _resume_restore(settings: Settings, job: Job) -> int:
    from sluice.cli._restore_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_restore(settings: Settings, job: Job) -> int:
    from sluice.cli._restore_job import cancel_job

    return cancel_job(settings, job)


def _resume_restore_files(settings: Settings, job: Job) -> int:
    from sluice.cli._restore_files_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_restore_files(settings: Settings, job: Job) -> int:
    from sluice.cli._restore_files_job import cancel_job

    return cancel_job(settings, job)


def _resume_base(settings: Settings, job: Job) -> int:
    from sluice.cli._base_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_base(settings: Settings, job: Job) -> int:
    from sluice.cli._base_job import cancel_job

    return cancel_job(settings, job)


def _resume_drill(settings: Settings, job: Job) -> int:
    from sluice.cli._drill_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_drill(settings: Settings, job: Job) -> int:
    from sluice.cli._drill_job import cancel_job

    return cancel_job(settings, job)


def _resume_verify(settings: Settings, job: Job) -> int:
    from sluice.cli._verify_job import run_job

    return run_job(settings, job, "sluice jobs resume")


def _cancel_verify(settings: Settings, job: Job) -> int:
    from sluice.cli._verify_job import cancel_job

    return cancel_job(settings, job)


RESUME: dict[str, JobAction] = {
    "backfill": _resume_backfill,
    "base": _resume_base,
    "bootstrap": _resume_bootstrap,
    "drill": _resume_drill,
    "reapply": _resume_reapply,
    "restore": _resume_restore,
    "restore-files": _resume_restore_files,
    "verify": _resume_verify,
}
"""Goes on with a job of each kind in this process; the exit code."""
CANCEL: dict[str, JobAction] = {
    "backfill": _cancel_backfill,
    "base": _cancel_base,
    "bootstrap": _cancel_bootstrap,
    "drill": _cancel_drill,
    "reapply": _cancel_reapply,
    "restore": _cancel_restore,
    "restore-files": _cancel_restore_files,
    "verify": _cancel_verify,
}
"""Gives up a job of each kind that no process runs, as was ordered already; the exit code."""
