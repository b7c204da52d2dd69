"""sluice reapply: apply past windows again, to another downstream or to damaged rows."""

from __future__ import annotations

import click

from sluice.cli._job_run import run_command
from sluice.cli._moments import MOMENT, MOMENT_FORMS
from sluice.cli._settings import config_option


@click.command("reapply")
@click.option(
    "--since", type=MOMENT, required=True,
    help=f"Only what was committed after this: {MOMENT_FORMS}.",
)  # fmt: skip
@click.option("--until", type=MOMENT, help="Through this, inclusive [all that is landed now].")
@click.option(
    "--to", "target", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Settings file of the target: its [downstream] with [file] or [kafka], [apply], and"
    " [filter] and [[route]] if present. A whole sluice.toml works [the pipeline's own"
    " downstream, see above].",
)  # fmt: skip
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True,
    help="Only tables whose upstream name matches (schema.table, * and ?); may be repeated [all"
    " that the rules replicate].",
)  # fmt: skip
@click.option(
    "--rows-per-second", type=click.IntRange(1), help="Limit in row changes per second [none]."
)
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only show what would be done; nothing is written."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    since: int,
    until: int | None,
    target: str | None,
    globs: tuple[str, ...],
    rows_per_second: int | None,
    config: str | None,
    *,
    plan_only: bool,
) -> int:
    """Apply past windows of the relay log again: to another downstream, or to repair rows.

    With --to, a folder of binlog files, a Kafka topic or a database gets what was committed in a
    range of time, each transaction once, while the pipeline continues.

    Without --to, repair rows of the pipeline's own database. Rows of the tables in --table that
    were changed in the range become what they are upstream, from the relay log alone, while
    replication continues.

    After a kill or an error, run the same command again, or `sluice jobs resume`, to continue.
    """
    form = {
        "since": since,
        "until": until,
        "target": target,
        "tables": globs,
        "rows_per_second": rows_per_second,
    }
    return run_command(ctx, config, "reapply", form, plan_only=plan_only)
