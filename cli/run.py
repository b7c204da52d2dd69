"""sluice run: the whole on one machine, from nothing to compared."""

from __future__ import annotations

from pathlib import Path

import click

from cli._progress import ReplayProgress
from cli._stack import recording_option, stack_of, stop_signals_raise
from embedded.recording import Recording
from embedded.repository import recording_folder
from embedded.run import RunSummary, run
from embedded.stack import DEFAULT_RECORDING


@click.command("run")
@recording_option("What to replay [the recording `shop`].")
@click.option(
    "--speed",
    metavar="N|max",
    default="1",
    show_default=True,
    help="Pace: 1 as recorded, 2 twice as fast, max without waiting.",
)
@click.pass_context
def command(ctx: click.Context, directory: Path | None, speed: str) -> int:
    """Start everything on empty data, replay recorded TiDB traffic through it, compare the downstream with the
    recording's snapshots, and stop everything. Exit code 0 only if there is no difference."""
    directory = (directory or recording_folder(DEFAULT_RECORDING)).absolute()
    recording = Recording(directory)
    totals = {
        label.name: sum(1 for each in recording.transactions(label.ts).values() if each.commit_ts)
        for label in recording.labels
    }
    with stop_signals_raise(), ReplayProgress() as display:
        summary = run(
            stack_of(ctx), directory, display.say,
            lambda label, progress: display.show(label.name, totals[label.name], progress), speed,
        )  # fmt: skip
    _print(summary)
    return 1 if summary.differences else 0


def _print(summary: RunSummary) -> None:
    click.echo()
    for line in summary.differences:
        click.echo(line)
    rows = {
        "recording": summary.recording,
        "transactions": f"{summary.transactions:,}",
        "row changes": f"{summary.changes:,}",
        "DDL statements": f"{summary.ddls:,}",
        "windows": f"{summary.windows:,}",
        "rows/s": f"{summary.rows_per_s:,.0f} (from the first commit upstream to the last checkpoint)",
        "lag": (
            f"p50 {summary.lag_p50_ms / 1000:.2f} s, p95 {summary.lag_p95_ms / 1000:.2f} s, max"
            f" {summary.lag_max_ms / 1000:.2f} s (commit upstream to checkpoint downstream,"
            f" {'sent as fast as possible' if summary.speed == 'max' else f'recorded speed x {summary.speed}'})"
        ),
        "compared": f"{len(summary.snapshots)} snapshots, {summary.tables} tables, {summary.rows_compared:,} rows",
        "differences": str(len(summary.differences)),
        "time": f"{summary.total_s:.0f} s, {summary.start_s:.0f} s of them to start",
    }
    if summary.restarted:
        rows["restarted"] = ", ".join(summary.restarted)
    for name, value in rows.items():
        click.echo(f"{name:<15} {value}")
