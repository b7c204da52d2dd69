"""sluice bootstrap: an empty database becomes a replica."""

from __future__ import annotations

import click

from sluice.cli._bootstrap_job import print_summary
from sluice.cli._copy_progress import CopyProgress
from sluice.cli._settings import config_option, operator_name, settings_for_write, settings_of
from sluice.cli._this_process import local_runner, pause_on_signals


@click.command("bootstrap")
@click.option(
    "--from", "url", metavar="URL", required=True,
    help="A folder that Dumpling wrote: a path, or a URL (file, s3, gs, az) without credentials; or tidb://, which is"
    " TiDB itself at [upstream] sql-host, as of the copy's beginning; or base://, the archive's youngest base, or"
    " base://NAME, another one.",
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
@click.option(
    "--no-header", "csv_header", is_flag=True, flag_value=False, default=True, help="CSV files have no header."
)
@click.option(
    "--no-escape-backslash", "escape_backslash", is_flag=True, flag_value=False, default=True,
    help="Dumpling was given --escape-backslash=false.",
)  # fmt: skip
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

    It is a job: `sluice jobs` shows how far it is, from anywhere, pauses it or gives it up. Ctrl-C pauses it. Killed,
    or stopped by an error, the same command goes on with what is left.
    """
    from sluice.etl.copy import plan_bootstrap, request_from_form, run_bootstrap

    wish = request_from_form({"source": url, "tables": globs, "into": into, **dump}, operator_name())
    if plan_only:
        plan = plan_bootstrap(settings_of(ctx, config), wish)
        click.echo("\n".join(plan.lines()))
        return 1 if plan.problems else 0
    settings = settings_for_write(ctx, config)
    with pause_on_signals(settings, "bootstrap"), CopyProgress() as display:
        summary = run_bootstrap(settings, wish, on_progress=display.show, runner=local_runner("sluice bootstrap"))
    return print_summary(summary)
