"""sluice drill: restoring is tried before it is needed."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, operator_name, settings_for_write


@click.command("drill")
@click.option(
    "--tables", type=click.IntRange(1), default=5, show_default=True, help="At most so many, chosen at random."
)
@click.option(
    "--max-mb", type=click.IntRange(1), default=10_000, show_default=True,
    help="Tables that have at most about so many MB of rows together; one is taken whatever it has.",
)  # fmt: skip
@click.option(
    "--at", "moment", metavar="TSO|TIME", help="As of this moment [any that can be restored, chosen at random]."
)
@config_option
@click.pass_context
def command(ctx: click.Context, *, tables: int, max_mb: int, moment: str | None, config: str | None) -> int:
    """Restore some tables as of some moment into databases of their own (sluice_drill_…), verify them, drop them, and
    keep how long it took: that is the real recovery time. The DAG `restore_drill` does so by itself, as often as
    [archive] drills-every says.

    It is a job: `sluice jobs` shows it, and `sluice archive status` names the last one.
    """
    from sluice.cli._drill_job import run_job
    from sluice.etl.restore.drill import RestoreTestRequest, create_or_resume
    from sluice.tidb import tso

    settings = settings_for_write(ctx, config)
    wish = RestoreTestRequest(tables, max_mb * 1_000_000, tso.parse_moment(moment) if moment else None)
    return run_job(settings, create_or_resume(settings, wish, operator_name()), "sluice drill")
