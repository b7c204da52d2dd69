"""Jobs of `sluice restore` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli._copy_progress import CopyProgress
from cli._this_process import paused_as_ordered, pausing, this_process

if TYPE_CHECKING:
    from etl.restore import RestoreSummary
    from etl.settings import Settings
    from relay.jobs import Job


def run_here(settings: Settings, job: Job, command: str) -> int:
    """Do it, or go on with it, and say what was done; the exit code."""
    from etl.restore import run_restore

    click.echo(f"job      {job.id}", err=True)
    with pausing(settings, job.spec.kind), CopyProgress() as display:
        summary = run_restore(settings, job, this_process(command), on_progress=display.show)
    return _say(summary)


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from etl.restore import cancel_restore

    _say(cancel_restore(settings, job, this_process("sluice jobs cancel")))
    return 0


def _say(summary: RestoreSummary) -> int:
    from relay.jobs import CANCELLED, PAUSED
    from upstream import tso

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    if summary.state == CANCELLED:
        for line in summary.left:
            click.echo(f"stays    {line}")
        click.echo("cancelled: what was restored is taken back" + (", but for what is named" if summary.left else ""))
        return 1
    if summary.state == PAUSED:
        return paused_as_ordered()
    verified = summary.verified
    click.echo(
        f"{summary.tables} tables are in {summary.to} as they were at {tso.text(summary.until)}:"
        f" {summary.base_rows:,} rows of the base, {summary.changes:,} row changes and {summary.ddls:,} DDL in"
        f" {summary.seconds:,.1f} s"
    )
    if verified.note:
        click.echo(f"note     {verified.note}")
    if not verified.tables:
        return 0
    click.echo(
        f"verified {verified.tables} tables, {verified.rows:,} rows, against what Spark computes from the archive;"
        f" {verified.with_tidb} of them against TiDB"
    )
    return 0
