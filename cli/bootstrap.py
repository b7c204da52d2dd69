"""sluice bootstrap: make an empty database a replica, or fill topics with a snapshot."""

from __future__ import annotations

import click

from sluice.cli._copy_progress import CopyProgress
from sluice.cli._job_run import local_runner, pause_on_signals, print_summary, run_command
from sluice.cli._json_lines import wants_json
from sluice.cli._settings import config_option, operator_name, settings_of
from sluice.etl.tasks.job_kinds import job_kind


@click.command("bootstrap")
@click.option(
    "--from", "url", metavar="URL", required=True,
    help="Source of the rows: the path or URL (file, s3, gs, az; without credentials) of a folder"
    " that Dumpling wrote; tidb:// for TiDB itself at [upstream] sql-host, as of the start of"
    " the copy; snapshot:// for the archive's newest snapshot, snapshot://NAME for another one.",
)  # fmt: skip
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Copy only tables whose name matches (schema.table, * and ?); may be repeated [all that"
    " the rules replicate].",
)  # fmt: skip
@click.option(
    "--into", metavar="DATABASE", multiple=True,
    help="Downstream database that may contain other tables; may be repeated [none].",
)  # fmt: skip
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only show what would be done; nothing is written."
)
@click.option("--csv-separator", help="Separator that Dumpling was given [found from the header].")
@click.option(
    "--csv-delimiter",
    help="Quote character that Dumpling was given, '' for none [found from the header].",
)
@click.option(
    "--csv-line-terminator",
    help=r"Line end that Dumpling was given; \r, \n and \t are escapes [found from the header].",
)
@click.option("--csv-null-value", default="\\N", show_default=True, help="Spelling of NULL.")
@click.option(
    "--no-header",
    "csv_header",
    is_flag=True,
    flag_value=False,
    default=True,
    help="CSV files have no header.",
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
    """Make an empty database a replica, from a dump or from TiDB.

    Create its tables, copy their rows, and write the rows' timestamp as the checkpoint. Replication
    continues from there. Kafka gets a message for each row.

    This is a job: `sluice jobs` shows its progress, pauses or cancels it from any machine. Ctrl-C
    pauses it. After a kill or an error, run the same command again to continue.
    """
    form = {"source": url, "tables": globs, "into": into, **dump}
    if plan_only:
        return run_command(ctx, config, "bootstrap", form, plan_only=True)
    from sluice.etl.copy import run_bootstrap
    from sluice.etl.tasks.form_fields import bootstrap_request

    # in one session with the source: it is opened, and TiDB's schema read, once
    settings = settings_of(ctx, config)
    request = bootstrap_request(form, operator_name())
    with pause_on_signals(settings, "bootstrap"), CopyProgress() as display:
        summary = run_bootstrap(
            settings, request, on_progress=display.show, runner=local_runner("sluice bootstrap")
        )
    kind = job_kind("bootstrap")
    print_summary(kind, summary)
    if not kind.succeeded(summary):
        return 1
    if not wants_json():
        dag = settings.dag_id("replicate")
        is_service = settings.airflow.replication == "service"
        how = "`sluice replicate`" if is_service else f"unpause the DAG {dag} in Airflow"
        click.echo(f"next: {how}; `sluice status` shows the lag")
    return 0
