"""sluice drill: try a restore before it is needed."""

from __future__ import annotations

import click

from sluice.cli._job_run import run_command
from sluice.cli._moments import MOMENT, MOMENT_FORMS
from sluice.cli._settings import config_option


@click.command("drill")
@click.option(
    "--tables",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Maximum number of tables, chosen at random.",
)
@click.option(
    "--max-mb", type=click.IntRange(1), default=10_000, show_default=True,
    help="Approximate limit of the tables' rows together, in MB; one table is restored whatever"
    " its size.",
)  # fmt: skip
@click.option(
    "--at",
    "moment",
    type=MOMENT,
    help=f"Restore as of this: {MOMENT_FORMS} [a random moment of the recovery window].",
)
@config_option
@click.pass_context
def command(
    ctx: click.Context, *, tables: int, max_mb: int, moment: int | None, config: str | None
) -> int:
    """Restore some tables into temporary databases (sluice_drill_…), verify and drop them.

    The recorded duration is the real recovery time. The moment is random unless you give one. The
    DAG `restore_drill` does the same automatically, at the interval [archive] drills-every.

    This is a job: `sluice jobs` shows it, and `sluice archive status` shows the last one.
    """
    return run_command(ctx, config, "drill", {"tables": tables, "max_mb": max_mb, "at": moment})
