"""Jobs of `sluice backfill` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import show_job_progress

if TYPE_CHECKING:
    from sluice.etl.copy.backfill import BackfillSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job

_DIFFERS = 1


def run_job(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Run a backfill, or continue it, and print its summary; return the exit code."""
    from sluice.cli._this_process import local_runner, pause_on_signals
    from sluice.etl.copy.backfill import run_backfill

    with pause_on_signals(settings, job.spec.kind), show_job_progress(job):
        summary = run_backfill(settings, job.id, local_runner(command))
    click.echo(json.dumps(summary.to_json(), indent=2)) if as_json else _print(summary)
    unlike = summary.mode == "compare" and summary.differing
    return _DIFFERS if unlike or summary.state != "done" else 0


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.cli._this_process import local_runner
    from sluice.etl.copy.backfill import cancel_backfill

    said = cancel_backfill(settings, job.id, local_runner("sluice jobs cancel"))
    click.echo(f"cancelled: {said or 'what was copied stays'}")
    return 0


def _print(summary: BackfillSummary) -> None:
    for name, table in summary.tables.items():
        if summary.mode == "compare":
            done = (
                f"{table['inserted']:,} missing, {table['replaced']:,} different,"
                f" {table['deleted']:,} not upstream"
            )
        else:
            done = (
                f"{table['inserted']:,} added, {table['replaced']:,} replaced, {table['deleted']:,}"
                " removed"
            )
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
        f"{summary.state}: {rows:,} rows in {summary.seconds:,.1f} s"
        f" ({rows / max(summary.seconds, 1e-3):,.0f} rows/s)"
    )
    if summary.state == "paused":
        click.echo(f"`sluice jobs resume {summary.job}` goes on")
