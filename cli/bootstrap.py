"""sluice bootstrap: an empty database becomes a replica."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli._copy_progress import CopyProgress
from cli._settings import acting_on, config_option, settings_of
from cli._stack import stop_signals_raise

if TYPE_CHECKING:
    from etl.copy import CopyPlan, DumplingOptions


@click.command("bootstrap")
@click.option(
    "--from", "url", metavar="URL", required=True,
    help="A folder that Dumpling wrote: a path, or a URL (file, s3, gs, az) without credentials; or tidb://, which is"
    " TiDB itself at [upstream] sql-host, as of the copy's beginning.",
)  # fmt: skip
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Copy only tables with such a name (schema.table, * and ?); may be repeated [all that the rules want].",
)  # fmt: skip
@click.option(
    "--into", metavar="DATABASE", multiple=True,
    help="A database downstream that may hold other tables; may be repeated [none].",
)  # fmt: skip
@click.option("--plan", "plan_only", is_flag=True, help="Only say what would be done; nothing is written.")
@click.option("--csv-separator", help="What Dumpling was given [as the header tells].")
@click.option("--csv-delimiter", help="What Dumpling was given, '' for none [as the header tells].")
@click.option(
    "--csv-line-terminator", help=r"What Dumpling was given, with \r, \n and \t for these [as the header tells]."
)
@click.option("--csv-null-value", default="\\N", show_default=True, help="How NULL is spelled.")
@click.option("--no-header", is_flag=True, help="CSV files have no header.")
@click.option("--no-escape-backslash", is_flag=True, help="Dumpling was given --escape-backslash=false.")
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    url: str,
    globs: tuple[str, ...],
    into: tuple[str, ...],
    config: str | None,
    *,
    plan_only: bool,
    **dump: str | bool | None,
) -> int:
    """Make an empty database a replica: create its tables, copy their rows from a dump or from TiDB, and note the rows'
    timestamp as the checkpoint. Replication goes on from there.

    Killed, or stopped by an error, the same command goes on with what is left.
    """
    from etl.copy import plan_bootstrap, run_bootstrap

    options = _options(dump)
    url = url if "://" in url else str(Path(url).absolute())
    if plan_only:
        plan = plan_bootstrap(settings_of(ctx, config), url, options, globs, into)
        _print(plan)
        return 1 if plan.problems else 0
    settings = acting_on(ctx, config)
    with stop_signals_raise(), CopyProgress() as display:
        summary = run_bootstrap(settings, url, options, globs, into, on_progress=display.show)
    for warning in summary.warnings:
        click.echo(f"note     {warning}")
    rate = summary.rows / max(summary.seconds, 1e-3)
    click.echo(
        f"{summary.tables} tables, {summary.rows_there:,} rows are downstream; {summary.rows:,} rows and"
        f" {summary.bytes / 1e6:,.1f} MB in {summary.seconds:,.1f} s ({rate:,.0f} rows/s). The checkpoint is at"
        f" {summary.ts}: replication goes on from there"
    )
    return 0


def _options(dump: dict[str, str | bool | None]) -> DumplingOptions:
    from etl.copy import CsvFormat, DumplingOptions

    terminator = dump["csv_line_terminator"]
    if isinstance(terminator, str):
        terminator = terminator.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t")
    separator = dump["csv_separator"]
    form = CsvFormat(
        separator=separator.replace("\\t", "\t") if isinstance(separator, str) else None,
        delimiter=dump["csv_delimiter"],  # type: ignore[arg-type]
        terminator=terminator,  # type: ignore[arg-type]
        header=not dump["no_header"],
        null=str(dump["csv_null_value"]),
    )
    return DumplingOptions(form, escapes=not dump["no_escape_backslash"])


def _print(plan: CopyPlan) -> None:
    from upstream import tso

    click.echo(f"position {plan.ts} ({tso.to_datetime(plan.ts):%Y-%m-%d %H:%M:%S} UTC)")
    for planned in plan.tables:
        source = planned.table.full_name
        count = sum(chunk.full_name == source for chunk in plan.chunks)
        goal = "" if planned.target == source else f" to {planned.target}"
        click.echo(f"copy     {source}{goal}: {planned.bytes / 1e6:,.1f} MB in {count} chunks")
    click.echo(f"in all   {len(plan.tables)} tables, {plan.bytes / 1e6:,.1f} MB in {len(plan.chunks)} chunks")
    for note in plan.notes:
        click.echo(f"note     {note}")
    for problem in plan.problems:
        click.echo(f"stops    {problem}")
