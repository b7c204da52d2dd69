"""Jobs of `sluice snapshot` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import show_job_progress
from sluice.cli._sizes import format_size

if TYPE_CHECKING:
    from sluice.etl.history.snapshots import SnapshotJobSummary
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job


def run_job(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Make a snapshot, or continue it, and print its summary; return the exit code."""
    from sluice.cli._this_process import local_runner, pause_on_signals
    from sluice.etl.history.snapshots import run_snapshot

    with pause_on_signals(settings, job.spec.kind), show_job_progress(job):
        summary = run_snapshot(settings, job.id, local_runner(command))
    click.echo(json.dumps(summary.to_json(), indent=2) if as_json else _text(summary))
    return 0 if summary.state == "done" else 1


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.cli._this_process import local_runner
    from sluice.etl.history.snapshots import cancel_snapshot

    cancel_snapshot(settings, job.id, local_runner("sluice jobs cancel"))
    click.echo("cancelled: nothing of it stays")
    return 0


def _text(summary: SnapshotJobSummary) -> str:
    if summary.state != "done":
        return (
            f"{summary.state}: `sluice jobs resume {summary.job}` goes on"
            if summary.state == "paused"
            else "cancelled"
        )
    rate = summary.copied_bytes / max(summary.seconds, 1e-3) / 1e6
    referred = (
        f", {summary.referred} of them as they lie in older snapshots" if summary.referred else ""
    )
    return (
        f"{summary.snapshot}: {summary.tables} tables{referred}, {summary.rows:,} rows,"
        f" {format_size(summary.file_bytes)}; {summary.copied_rows:,} rows,"
        f" {format_size(summary.copied_bytes)} in memory, were copied in {summary.seconds:,.1f} s"
        f" ({rate:,.1f} MB/s)"
    )
