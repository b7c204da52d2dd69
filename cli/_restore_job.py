"""Jobs of `sluice restore` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._this_process import local_runner, pause_on_signals, print_paused

if TYPE_CHECKING:
    from sluice.etl.restore import RestoreSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job


def run_job(settings: Settings, job: Job, command: str) -> int:
    """Run a restore, or continue it, and print its summary; return the exit code."""
    from sluice.etl.restore import run_restore

    click.echo(f"job      {job.id}", err=True)
    with pause_on_signals(settings, job.spec.kind), CopyProgress() as display:
        summary = run_restore(settings, job, local_runner(command), on_progress=display.show)
    return _print_summary(summary)


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.etl.restore import cancel_restore

    _print_summary(cancel_restore(settings, job, local_runner("sluice jobs cancel")))
    return 0


def _print_summary(summary: RestoreSummary) -> int:
    from sluice.relay.jobs import CANCELLED, PAUSED
    from sluice.tidb import tso

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    if summary.state == CANCELLED:
        for line in summary.left:
            click.echo(f"stays    {line}")
        click.echo(
            "cancelled: what was restored is taken back"
            + (", but for what is named" if summary.left else "")
        )
        return 1
    if summary.state == PAUSED:
        return print_paused()
    verified = summary.verified
    click.echo(
        f"{summary.tables} tables are in {summary.to} as they were at {tso.text(summary.until)}:"
        f" {summary.snapshot_rows:,} rows of the snapshot, {summary.changes:,} row changes and"
        f" {summary.ddls:,} DDL in {summary.seconds:,.1f} s"
    )
    if verified.note:
        click.echo(f"note     {verified.note}")
    if not verified.tables:
        return 0
    click.echo(
        f"verified {verified.tables} tables, {verified.rows:,} rows, against what Spark computes"
        f" from the archive; {verified.with_tidb} of them against TiDB"
    )
    return 0
