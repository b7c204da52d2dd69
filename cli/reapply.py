"""sluice reapply: apply past windows again, to another downstream or to damaged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, operator_name, settings_for_write, settings_of
from sluice.cli._sizes import format_size

if TYPE_CHECKING:
    from sluice.etl.verify.reapply import ReplayPlan

_MAX_DDLS_SHOWN = 20


@click.command("reapply")
@click.option(
    "--since", metavar="TSO|TIME", required=True,
    help="Only what was committed after this: a TSO, or an ISO date-time such as"
    " 2026-11-16T00:00:00+01:00 (UTC without a zone).",
)  # fmt: skip
@click.option(
    "--until", metavar="TSO|TIME", help="Through this, inclusive [all that is landed now]."
)
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
    since: str,
    until: str | None,
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
    from sluice.etl.settings import read_target
    from sluice.etl.verify.reapply import ReplayRequest, create_or_resume, make_replay_plan
    from sluice.tidb import tso

    settings = settings_of(ctx, config) if plan_only else settings_for_write(ctx, config)
    end = 0 if until is None else tso.parse_moment(until)
    request = ReplayRequest(
        tso.parse_moment(since),
        end,
        read_target(target) if target else {},
        globs,
        rows_per_second or 0,
    )
    if plan_only:
        plan = make_replay_plan(settings, request)
        _print(plan)
        return 1 if plan.problems else 0
    from sluice.cli._reapply_job import run_job

    return run_job(settings, create_or_resume(settings, request, operator_name()), "sluice reapply")


def _print(plan: ReplayPlan) -> None:
    from sluice.tidb import tso

    click.echo(f"since    {tso.text(plan.since)}")
    click.echo(f"until    {tso.text(plan.until)}")
    click.echo(f"to       {plan.to}")
    click.echo(
        f"in all   {plan.windows:,} windows, at most {plan.changes:,} row changes in"
        f" {plan.transactions:,} transactions, {format_size(plan.bytes)} of the relay log"
    )
    for name in plan.tables:
        click.echo(f"table    {name}")
    for ddl in plan.ddls[:_MAX_DDLS_SHOWN]:
        click.echo(f"ddl      {ddl}")
    if len(plan.ddls) > _MAX_DDLS_SHOWN:
        click.echo(f"ddl      and {len(plan.ddls) - _MAX_DDLS_SHOWN} more")
    for note in plan.notes:
        click.echo(f"note     {note}")
    for problem in plan.problems:
        click.echo(f"stops    {problem}")
