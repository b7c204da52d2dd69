"""sluice restore: restore tables as of a moment, beside the present ones."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from sluice.cli._job_run import run_command
from sluice.cli._moments import MOMENT, MOMENT_FORMS
from sluice.cli._settings import config_option
from sluice.cli._suggestions import Choice


@click.command("restore")
@click.option(
    "--until",
    type=MOMENT,
    help=f"Include everything committed until this: {MOMENT_FORMS} [all that is landed now].",
)
@click.option(
    "--table", "tables", metavar="GLOB", multiple=True,
    help="Only tables whose name then matches (schema.table, * and ?); may be repeated [all].",
)  # fmt: skip
@click.option(
    "--into",
    metavar="PATTERN",
    help=(
        "Pattern of the target databases' names [{schema}_restored; with --to or --connection the"
        " upstream's own, {schema}]."
    ),
)
@click.option(
    "--to", "target", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Settings file whose [downstream] is the target server; a whole sluice.toml works [the"
    " pipeline's own server].",
)  # fmt: skip
@click.option(
    "--connection", metavar="ID", help="Airflow connection of the target server, instead of --to."
)
@click.option(
    "--replace", "replacing", metavar="TABLE", multiple=True,
    help="Existing table (database and name on the target server) to replace once the restore is"
    " complete; may be repeated.",
)  # fmt: skip
@click.option(
    "--files", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Write files into this folder instead of a database: rows, CREATE TABLE, and a manifest.",
)  # fmt: skip
@click.option(
    "--format",
    "kind",
    type=Choice(("parquet", "csv", "sql")),
    default="parquet",
    show_default=True,
    help="Format of the row files.",
)
@click.option("--beside", is_flag=True, help="With --files: the folder may contain other files.")
@click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not compare the result.",
)
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only show what would be done; nothing is written."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str | None,
    *,
    plan_only: bool,
    folder: Path | None,
    kind: str,
    beside: bool,
    **form: Any,
) -> int:
    """Restore tables as of a moment from the archive.

    They go into new databases on the same server, into another server, or with --files into files.

    This is a job: `sluice jobs` shows its progress, pauses or cancels it from any machine; a
    cancelled restore leaves nothing behind. After a kill or an error, run the same command again to
    continue.
    """
    if folder is None:
        code = run_command(ctx, config, "restore", form, plan_only=plan_only)
        if not code and not plan_only and form["until"]:
            tables = shlex.join(form["tables"]) or "SCHEMA.TABLE"
            click.echo(
                f"next: `sluice as-of --diff {form['until']} 1m {tables}` shows what changed since",
                err=True,
            )
        return code
    if (
        any(form[name] for name in ("into", "target", "connection", "replacing"))
        or not form["verify"]
    ):
        raise click.UsageError(
            "--files goes with --until, --table, --format, --beside and --plan alone", ctx
        )
    form |= {"folder": folder, "format": kind, "beside": beside}
    return run_command(ctx, config, "restore-files", form, plan_only=plan_only)
