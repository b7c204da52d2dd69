"""sluice backfill: copy tables, or rows of them, again beside replication."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sluice.cli._backfill_job import run_job
from sluice.cli._settings import config_option, operator_name, settings_for_write, settings_of

if TYPE_CHECKING:
    from sluice.etl.copy.backfill import BackfillPlan, BackfillTablePlan

_UNKNOWN = "of unknown size"


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
    type=click.Choice(["replace", "missing", "compare"]),
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
    from sluice.etl.copy.backfill import BackfillRequest, plan_backfill

    request = BackfillRequest(globs, where, from_key, to_key, mode, rows_per_second or 0)
    request.check()
    if plan_only:
        plan = plan_backfill(settings_of(ctx, config), request)
        click.echo(json.dumps(plan.to_json(), indent=2)) if as_json else _print_plan(plan)
        return 1 if plan.problems else 0
    from sluice.etl.copy.backfill import create_backfill

    settings = settings_for_write(ctx, config)
    job = create_backfill(settings, request, operator_name())
    click.echo(f"job {job.id}", err=True)
    return run_job(settings, job, "sluice backfill", as_json=as_json)


def _print_plan(plan: BackfillPlan) -> None:
    for table in plan.tables:
        goal = "" if table.target == table.name else f" to {table.target}"
        click.echo(f"{plan.mode:<8} {table.name}{goal}: {_size(table)}{_extent(table)}")
    tables = "1 table" if len(plan.tables) == 1 else f"{len(plan.tables)} tables"
    known = f"about {plan.rows:,} rows, {plan.bytes / 1e6:,.1f} MB" if plan.rows else _UNKNOWN
    click.echo(f"in all   {tables}, {known}")
    if plan.seconds:
        click.echo(f"takes    about {plan.seconds:,.0f} s")
    click.echo(
        "reads    each chunk as of a moment ago: TiDB keeps what it needs anyway, and its GC isn't"
        " held back"
    )
    for note in plan.notes:
        click.echo(f"note     {note}")
    for problem in plan.problems:
        click.echo(f"stops    {problem}")


def _size(table: BackfillTablePlan) -> str:
    return f"about {table.rows:,} rows, {table.bytes / 1e6:,.1f} MB" if table.rows else _UNKNOWN


def _extent(table: BackfillTablePlan) -> str:
    if not table.key:
        return ", as one chunk"
    limits = [
        f"from {', '.join(table.low)}" if table.low else "",
        f"before {', '.join(table.high)}" if table.high else "",
    ]
    ends = " ".join(limit for limit in limits if limit)
    return f", in ranges of ({', '.join(table.key)}) {ends}".rstrip()
