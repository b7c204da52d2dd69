"""Jobs of `sluice drill` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli._copy_progress import CopyProgress
from cli._sizes import duration
from cli._this_process import paused_as_ordered, pausing, this_process

if TYPE_CHECKING:
    from etl.settings import Settings
    from relay.jobs import Job


def run_here(settings: Settings, job: Job, command: str) -> int:
    """Do it, or go on with it, and say what was tried; the exit code."""
    from etl.drill import run_drill
    from relay.jobs import CANCELLED, PAUSED
    from upstream import tso

    click.echo(f"job      {job.id}", err=True)
    with pausing(settings, job.spec.kind), CopyProgress() as display:
        done = run_drill(settings, job, this_process(command), on_progress=display.show)
    if done.state == PAUSED:
        return paused_as_ordered()
    if done.state == CANCELLED:
        click.echo("cancelled: what was restored is dropped")
        return 1
    for name in done.names:
        click.echo(f"table    {name}")
    verified = f", {done.verified_tables} tables verified" if done.verified_tables else ", nothing was verified"
    click.echo(
        f"as of {tso.text(done.ts)}: {done.rows:,} rows of the base and {done.changes:,} row changes restored in"
        f" {duration(done.seconds)}{verified}; then dropped"
    )
    return 0


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from etl.drill import cancel_drill

    cancel_drill(settings, job, this_process("sluice jobs cancel"))
    click.echo("cancelled: what was restored is dropped")
    return 0
