"""Jobs of `sluice base` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from cli._copy_progress import job_shown
from cli._sizes import size

if TYPE_CHECKING:
    from etl.base import BaseSummary
    from etl.settings import Settings
    from relay.jobs import Job


def run_here(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Make a base, or go on with it, and say what it is; the exit code."""
    from cli._this_process import pausing, this_process
    from etl.base import run_base

    with pausing(settings, job.spec.kind), job_shown(job):
        summary = run_base(settings, job.id, this_process(command))
    click.echo(json.dumps(summary.to_json(), indent=2) if as_json else _text(summary))
    return 0 if summary.state == "done" else 1


def cancel_here(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from cli._this_process import this_process
    from etl.base import cancel_base

    cancel_base(settings, job.id, this_process("sluice jobs cancel"))
    click.echo("cancelled: nothing of it stays")
    return 0


def _text(summary: BaseSummary) -> str:
    if summary.state != "done":
        return (
            f"{summary.state}: `sluice jobs resume {summary.job}` goes on" if summary.state == "paused" else "cancelled"
        )
    rate = summary.copied_bytes / max(summary.seconds, 1e-3) / 1e6
    referred = f", {summary.referred} of them as they lie in older bases" if summary.referred else ""
    return (
        f"{summary.base}: {summary.tables} tables{referred}, {summary.rows:,} rows, {size(summary.file_bytes)};"
        f" {summary.copied_rows:,} rows, {size(summary.copied_bytes)} in memory, were copied in"
        f" {summary.seconds:,.1f} s ({rate:,.1f} MB/s)"
    )
