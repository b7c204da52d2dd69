"""Jobs of `sluice drill` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._sizes import format_duration
from sluice.cli._this_process import local_runner, pause_on_signals, print_paused

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job


def run_job(settings: Settings, job: Job, command: str) -> int:
    """Run a restore drill, or continue it, and print what was tried; return the exit code."""
    from sluice.etl.restore.drill import run_drill
    from sluice.relay.jobs import CANCELLED, PAUSED
    from sluice.tidb import tso

    click.echo(f"job      {job.id}", err=True)
    with pause_on_signals(settings, job.spec.kind), CopyProgress() as display:
        done = run_drill(settings, job, local_runner(command), on_progress=display.show)
    if done.state == PAUSED:
        return print_paused()
    if done.state == CANCELLED:
        click.echo("cancelled: what was restored is dropped")
        return 1
    for name in done.names:
        click.echo(f"table    {name}")
    verified = (
        f", {done.verified_tables} tables verified"
        if done.verified_tables
        else ", nothing was verified"
    )
    click.echo(
        f"as of {tso.text(done.ts)}: {done.rows:,} rows of the snapshot and {done.changes:,} row"
        f" changes restored in {format_duration(done.seconds)}{verified}; then dropped"
    )
    return 0


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.etl.restore.drill import cancel_drill

    cancel_drill(settings, job, local_runner("sluice jobs cancel"))
    click.echo("cancelled: what was restored is dropped")
    return 0
