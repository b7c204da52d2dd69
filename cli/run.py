"""sluice run: the whole on one machine, from nothing to compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli._stack import recording_option, signals_as_interrupt, stack_of

if TYPE_CHECKING:
    from sluice.devstack.progress_view import QualityReport
    from sluice.devstack.run_summary import RunSummary


@click.command("run")
@recording_option("What to replay [the recording `shop`].")
@click.option(
    "--speed",
    metavar="N|max",
    default="0.5",
    show_default=True,
    help="Pace: 1 as recorded, 2 twice as fast, max without waiting.",
)
@click.option(
    "--bootstrap/--no-bootstrap", default=True, show_default=True,
    help="Copy the existing rows after a quarter of the traffic, replicate the rest, then damage a"
    " table and copy it again; or replicate all of the traffic.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, directory: Path | None, speed: str, *, bootstrap: bool) -> int:
    """Run the whole demo on one machine, and compare the result with the recording.

    Start the stack on empty data, replay recorded TiDB traffic, and bootstrap the downstream in the
    middle of it. Then compare the downstream with the recording's snapshots, and stop everything.
    Exit code 0 only if there is no difference.
    """
    # with Spark, for which `--help` doesn't wait
    from sluice.cli._progress import ReplayProgress
    from sluice.devstack.progress_view import Observer
    from sluice.devstack.recording import Recording
    from sluice.devstack.repository import recording_folder
    from sluice.devstack.run import run
    from sluice.devstack.stack import DEFAULT_RECORDING

    directory = (directory or recording_folder(DEFAULT_RECORDING)).absolute()
    recording = Recording(directory)
    end = recording.labels[-1].ts if recording.labels else 0
    total = sum(1 for each in recording.transactions(end).values() if each.commit_ts)
    with signals_as_interrupt(), ReplayProgress() as display:
        viewer = Observer(
            display.say,
            lambda label, copied, progress: display.show(label.name, total, progress, copied),
            display.show_copy,
            _look_at_quality,
        )
        summary = run(stack_of(ctx), directory, viewer, speed=speed, bootstrap=bootstrap)
    _print(summary)
    return 1 if summary.differences else 0


def _look_at_quality(config: Path) -> QualityReport:
    """Propose suites for all downstream tables and for replication itself, and run them."""
    from sluice.devstack.progress_view import QualityReport
    from sluice.etl import load_settings
    from sluice.expectations.run import QualityRequest, run_quality
    from sluice.expectations.suite_files import propose_suites

    settings, names = load_settings(config), []
    propose_suites(settings, (), lambda suite, _path, _written: names.append(suite.name))
    done = run_quality(settings, QualityRequest(suites=tuple(names)))
    expected = sum(suite.expectations for suite in done.suites)
    met = expected - sum(suite.failed for suite in done.suites)
    grave = [suite for suite in done.suites if suite.state not in ("passed", "warned")]
    return QualityReport(
        f"{len(done.suites)} suites, {met} of {expected} expectations met; report {done.index}",
        tuple(f"{suite.suite}: {suite.message or suite.state}" for suite in grave),
    )


def _print(summary: RunSummary) -> None:
    click.echo()
    for line in summary.differences:
        click.echo(line)
    rows = {
        "recording": summary.recording,
        **_copy_rows(summary),
        "transactions": f"{summary.transactions:,}{' replicated' if summary.copied else ''}",
        "row changes": f"{summary.changes:,}",
        "DDL statements": f"{summary.ddls:,}",
        "windows": f"{summary.windows:,}",
        "rows/s": f"{summary.rows_per_s:,.0f} (from the first checkpoint to the last)",
        "lag": _lag(summary),
        "compared": (
            f"{len(summary.snapshots)} snapshots, {summary.tables} tables,"
            f" {summary.rows_compared:,} rows"
        ),
        "differences": str(len(summary.differences)),
        **({"quality": summary.quality} if summary.quality else {}),
        **({"accident": summary.accident} if summary.accident else {}),
        **({"found": summary.found, "restored": summary.restored} if summary.restored else {}),
        "time": f"{summary.total_s:.0f} s, {summary.start_s:.0f} s of them to start",
    }
    if summary.restarted:
        rows["restarted"] = ", ".join(summary.restarted)
    for name, value in rows.items():
        click.echo(f"{name:<15} {value}")


def _copy_rows(summary: RunSummary) -> dict[str, str]:
    if not summary.copied:
        return {}
    late = summary.caught_up_s
    return {
        "copied": (
            f"{summary.copied_rows:,} rows of {summary.copied_tables} tables in"
            f" {summary.copied_s:.1f} s: what {summary.copied:,} transactions had left when it"
            " began"
        ),
        "caught up": "not before the end" if late is None else f"{late:.1f} s after the copy",
        **({"copied again": summary.copied_again} if summary.copied_again else {}),
        **({"verified": summary.verified} if summary.verified else {}),
        **({"spoiled": summary.spoiled} if summary.spoiled else {}),
    }


def _lag(summary: RunSummary) -> str:
    if not summary.lag_max_ms:
        return "unknown: nothing was committed after the replica had caught up"
    pace = (
        "sent as fast as possible"
        if summary.speed == "max"
        else f"recorded speed x {summary.speed}"
    )
    since = ", once it had caught up" if summary.copied else ""
    return (
        f"p50 {summary.lag_p50_ms / 1000:.2f} s, p95 {summary.lag_p95_ms / 1000:.2f} s, max"
        f" {summary.lag_max_ms / 1000:.2f} s (commit upstream to checkpoint downstream,"
        f" {pace}{since})"
    )
