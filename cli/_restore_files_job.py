"""Jobs of `sluice restore --files` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli._copy_progress import job_shown
from cli._this_process import paused_as_ordered, pausing, this_process

if TYPE_CHECKING:
    from etl.restore import FilesSummary
    from etl.settings import Settings
    from relay.jobs import Job


def run_here(settings: Settings, job: Job, command: str) -> int:
    """Do it, or go on with it, and say what was done; the exit code."""
    from etl.restore import run_files

    click.echo(f"job      {job.id}", err=True)
    with pausing(settings, job.spec.kind), job_shown(job):
        summary = run_files(settings, job, this_process(command))
    return _say(summary, job)


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from etl.restore import cancel_files

    return _say(cancel_files(settings, job, this_process("sluice jobs cancel")), job)


def _say(summary: FilesSummary, job: Job) -> int:
    from relay.jobs import CANCELLED, PAUSED
    from upstream import tso

    if summary.state == CANCELLED:
        said = job.entry().said
        click.echo(f"cancelled: {said or 'nothing of it stays'}")
        return 1
    if summary.state == PAUSED:
        return paused_as_ordered()
    for table in summary.tables:
        click.echo(f"table    {table.name}: {table.rows:,} rows in {table.file}")
    click.echo(
        f"{len(summary.tables)} tables, {summary.rows:,} rows, are in {summary.folder} as they were at"
        f" {tso.text(summary.until)}; {summary.made} of them were made and verified now"
    )
    return 0
