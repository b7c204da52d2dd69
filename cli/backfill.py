"""sluice backfill: copy tables, or rows of them, again beside replication."""

from __future__ import annotations

import click

from sluice.cli._job_run import run_command
from sluice.cli._settings import config_option
from sluice.cli._suggestions import Choice


@click.command("backfill")
@click.option(
    "--table", "globs", metavar="GLOB", multiple=True, required=True,
    help="Tables whose upstream name matches (schema.table, * and ?); may be repeated.",
)  # fmt: skip
@click.option(
    "--where",
    metavar="SQL",
    default="",
    help="Only rows for which this condition is true upstream [all].",
)
@click.option(
    "--from-key", metavar="KEY", default="",
    help="First key to copy: a value, several separated by commas, or a JSON array [the first].",
)  # fmt: skip
@click.option(
    "--to-key", metavar="KEY", default="", help="Key to stop before [none: through the last]."
)
@click.option(
    "--mode",
    type=Choice(["replace", "missing", "compare"]),
    default="replace",
    show_default=True,
    help=(
        "replace: make rows equal to the upstream, and delete those that the upstream doesn't"
        " have; missing: write only rows whose key isn't downstream; compare: write nothing, exit"
        " code 1 if anything differs."
    ),
)
@click.option(
    "--rows-per-second", type=click.IntRange(min=1), help="Limit in rows per second [none]."
)
@click.option(
    "--plan",
    "--dry-run",
    "plan_only",
    is_flag=True,
    help="Only show what would be done; nothing is written.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the plan or the result as JSON to standard output.",
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    globs: tuple[str, ...],
    where: str,
    from_key: str,
    to_key: str,
    mode: str,
    config: str | None,
    *,
    rows_per_second: int | None,
    plan_only: bool,
    as_json: bool,
) -> int:
    """Copy tables again from TiDB beside replication: repair, add or compare rows.

    Each chunk is read as of one timestamp and written when the downstream is at exactly that
    timestamp. So no chunk makes a table differ more from the upstream than before. This is a job:
    `sluice jobs pause` and `cancel` stop it from any machine, and `sluice jobs resume` continues it
    after a kill.
    """
    form = {
        "tables": globs,
        "where": where,
        "from_key": from_key,
        "to_key": to_key,
        "mode": mode,
        "rows_per_second": rows_per_second,
    }
    return run_command(ctx, config, "backfill", form, plan_only=plan_only, as_json=as_json)
