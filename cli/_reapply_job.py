"""Jobs of `sluice reapply` in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli._copy_progress import CopyProgress
from cli._settings import operator
from cli._stack import stop_signals_raise

if TYPE_CHECKING:
    from etl.reapply import ReapplySummary
    from etl.settings import Settings
    from relay.jobs import Done, Job, TableProgress


def run_here(settings: Settings, job: Job, command: str) -> int:
    """Do it, or go on with it, and say what was done; the exit code."""
    from etl.copy import Progress
    from etl.reapply import run_reapply
    from relay.jobs import Runner

    began = time.monotonic()
    click.echo(f"job      {job.id}", err=True)
    with stop_signals_raise(), CopyProgress() as display:

        def show(done: Done, of: TableProgress) -> None:
            left = of.bytes_in_all - of.done.bytes
            display.show(Progress(left, 0, done.bytes, done.bytes, 0, done.rows, doing="row changes", began_s=began))

        summary = run_reapply(settings, job, Runner(f"`{command}` of {operator()}"), on_progress=show)
    return _say(summary)


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from etl.reapply import cancel_reapply
    from relay.jobs import Runner

    said = cancel_reapply(settings, job, Runner(f"`sluice jobs cancel` of {operator()}"))
    click.echo(f"cancelled: {said}")
    return 0


def _say(summary: ReapplySummary) -> int:
    from upstream import tso

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    for name, count in summary.repaired.items():
        click.echo(
            f"{name}: {count['rows']:,} rows looked at, {count['same']:,} were right, {count['inserted']:,} added,"
            f" {count['replaced']:,} replaced, {count['deleted']:,} removed"
        )
    if summary.is_repair:
        click.echo(f"{'repaired' if summary.is_done else 'ended early'}, in {summary.seconds:,.1f} s")
        return 0 if summary.is_done else 1
    click.echo(
        f"{summary.to} has what was committed after {tso.text(summary.since)} through {tso.text(summary.through)}:"
        f" {summary.transactions:,} transactions, {summary.changes:,} row changes and {summary.ddls:,} DDL in"
        f" {summary.seconds:,.1f} s"
    )
    if summary.is_done:
        return 0
    click.echo(f"it was to go through {tso.text(summary.until)}; `sluice jobs show {summary.job}` tells who stopped it")
    return 1
