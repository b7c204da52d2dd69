"""Jobs of `sluice backfill` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from cli._copy_progress import job_shown

if TYPE_CHECKING:
    from etl.backfill import BackfillSummary
    from etl.settings import Settings
    from relay.jobs import Job

_DIFFERS = 1


def run_here(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Run a backfill, or go on with it, and say what it did; the exit code."""
    from cli._this_process import pausing, this_process
    from etl.backfill import run_backfill

    with pausing(settings, job.spec.kind), job_shown(job):
        summary = run_backfill(settings, job.id, this_process(command))
    click.echo(json.dumps(summary.to_json(), indent=2)) if as_json else _print(summary)
    unlike = summary.mode == "compare" and summary.differing
    return _DIFFERS if unlike or summary.state != "done" else 0


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from cli._this_process import this_process
    from etl.backfill import cancel_backfill

    said = cancel_backfill(settings, job.id, this_process("sluice jobs cancel"))
    click.echo(f"cancelled: {said or 'what was copied stays'}")
    return 0


def _print(summary: BackfillSummary) -> None:
    for name, table in summary.tables.items():
        if summary.mode == "compare":
            done = f"{table['inserted']:,} missing, {table['replaced']:,} different, {table['deleted']:,} not upstream"
        else:
            done = f"{table['inserted']:,} added, {table['replaced']:,} replaced, {table['deleted']:,} removed"
            done += f", {table['kept']:,} left as they are" if table["kept"] else ""
            done += f", {table['displaced']:,} in their way removed" if table["displaced"] else ""
        chunks = "1 chunk" if table["chunks"] == 1 else f"{table['chunks']:,} chunks"
        click.echo(f"{name}: {table['rows']:,} rows in {chunks}, {table['same']:,} equal, {done}")
        for example in table["examples"]:
            click.echo(f"  {example}")
    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    rows = summary.total("rows")
    click.echo(
        f"{summary.state}: {rows:,} rows in {summary.seconds:,.1f} s ({rows / max(summary.seconds, 1e-3):,.0f} rows/s)"
    )
    if summary.state == "paused":
        click.echo(f"`sluice jobs resume {summary.job}` goes on")
