"""Jobs of `sluice bootstrap` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._this_process import local_runner, pause_on_signals, print_paused

if TYPE_CHECKING:
    from sluice.etl.copy import BootstrapSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job


def run_job(settings: Settings, job: Job, command: str) -> int:
    """Go on with a bootstrap, and print how it ended; the exit code."""
    from sluice.etl.copy import resume_bootstrap

    with pause_on_signals(settings, job.spec.kind), CopyProgress() as display:
        return print_summary(resume_bootstrap(settings, job, local_runner(command), display.show))


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.etl.copy import cancel_bootstrap

    print_summary(cancel_bootstrap(settings, job, local_runner("sluice jobs cancel")))
    return 0


def print_summary(summary: BootstrapSummary) -> int:
    """Print how a bootstrap ended; the exit code."""
    from sluice.relay.jobs import CANCELLED, PAUSED

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    if summary.state == CANCELLED:
        for line in summary.left:
            click.echo(f"stays    {line}")
        click.echo(
            "cancelled: what was copied is taken back"
            + (", but for what is named" if summary.left else "")
        )
        return 1
    if summary.state == PAUSED:
        return print_paused()
    rate = summary.rows / max(summary.seconds, 1e-3)
    click.echo(
        f"{summary.tables} tables, {summary.rows_there:,} rows are downstream; {summary.rows:,}"
        f" rows and {summary.bytes / 1e6:,.1f} MB in {summary.seconds:,.1f} s ({rate:,.0f} rows/s)."
        f" The checkpoint is at {summary.ts}: replication goes on from there"
    )
    return 0
