"""Jobs of `sluice reapply` in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._settings import operator_name
from sluice.cli._stack import signals_as_interrupt

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.verify.reapply import ReplaySummary
    from sluice.relay.jobs import Job, JobCounts, TableProgress


def run_job(settings: Settings, job: Job, command: str) -> int:
    """Run a reapply, or continue it, and print what was done; return the exit code."""
    from sluice.etl.copy import CopyProgressCounts
    from sluice.etl.verify.reapply import run_reapply
    from sluice.relay.jobs import Runner

    began = time.monotonic()
    click.echo(f"job      {job.id}", err=True)
    with signals_as_interrupt(), CopyProgress() as display:

        def show(done: JobCounts, of: TableProgress) -> None:
            left = of.bytes_in_all - of.done.bytes
            display.show(
                CopyProgressCounts(
                    left,
                    0,
                    done.bytes,
                    done.bytes,
                    0,
                    done.rows,
                    doing="row changes",
                    began_s=began,
                )
            )

        summary = run_reapply(
            settings, job, Runner(f"`{command}` of {operator_name()}"), on_progress=show
        )
    return _print_summary(summary)


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.etl.verify.reapply import cancel_reapply
    from sluice.relay.jobs import Runner

    said = cancel_reapply(settings, job, Runner(f"`sluice jobs cancel` of {operator_name()}"))
    click.echo(f"cancelled: {said}")
    return 0


def _print_summary(summary: ReplaySummary) -> int:
    from sluice.tidb import tso

    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    for name, count in summary.repaired.items():
        click.echo(
            f"{name}: {count['rows']:,} rows looked at, {count['same']:,} were right,"
            f" {count['inserted']:,} added, {count['replaced']:,} replaced, {count['deleted']:,}"
            " removed"
        )
    if summary.is_repair:
        click.echo(
            f"{'repaired' if summary.is_done else 'ended early'}, in {summary.seconds:,.1f} s"
        )
        return 0 if summary.is_done else 1
    click.echo(
        f"{summary.to} has what was committed after {tso.text(summary.since)} through"
        f" {tso.text(summary.through)}: {summary.transactions:,} transactions, {summary.changes:,}"
        f" row changes and {summary.ddls:,} DDL in {summary.seconds:,.1f} s"
    )
    if summary.is_done:
        return 0
    click.echo(
        f"it was to go through {tso.text(summary.until)}; `sluice jobs show {summary.job}` shows"
        " who stopped it"
    )
    return 1
