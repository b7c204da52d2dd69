"""Jobs of `sluice restore --files` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import show_job_progress
from sluice.cli._this_process import local_runner, pause_on_signals, print_paused

if TYPE_CHECKING:
    from sluice.etl.restore import FilesSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job


def run_job(settings: Settings, job: Job, command: str) -> int:
    """Run a restore into files, or continue it, and print its summary; return the exit code."""
    from sluice.etl.restore import run_files

    click.echo(f"job      {job.id}", err=True)
    with pause_on_signals(settings, job.spec.kind), show_job_progress(job):
        summary = run_files(settings, job, local_runner(command))
    return _print_summary(summary, job)


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.etl.restore import cancel_files

    return _print_summary(cancel_files(settings, job, local_runner("sluice jobs cancel")), job)


def _print_summary(summary: FilesSummary, job: Job) -> int:
    from sluice.relay.jobs import CANCELLED, PAUSED
    from sluice.tidb import tso

    if summary.state == CANCELLED:
        said = job.entry().said
        click.echo(f"cancelled: {said or 'nothing of it stays'}")
        return 1
    if summary.state == PAUSED:
        return print_paused()
    for table in summary.tables:
        click.echo(f"table    {table.name}: {table.rows:,} rows in {table.file}")
    click.echo(
        f"{len(summary.tables)} tables, {summary.rows:,} rows, are in {summary.folder} as they were"
        f" at {tso.text(summary.until)}; {summary.made} of them were made and verified now"
    )
    return 0
