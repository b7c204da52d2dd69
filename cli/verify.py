"""sluice verify: compare both sides at a live checkpoint."""

from __future__ import annotations

import click

from sluice.cli._job_run import run_command
from sluice.cli._settings import config_option, settings_for_write


@click.command("verify")
@click.argument("tables", metavar="[SCHEMA.TABLE]...", nargs=-1)
@click.option(
    "--how", type=click.Choice(["auto", "upstream", "archive"]), default="auto", show_default=True,
    help="upstream: with TiDB at [upstream] sql-host, as of the checkpoint; archive: with what"
    " Spark computes from snapshot and archive; auto: with TiDB if it can be reached.",
)  # fmt: skip
@click.option(
    "--repair",
    is_flag=True,
    help="Print the SQL that would make the downstream's rows equal to the upstream's.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="With --repair: copy these rows by a backfill, and compare them again.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help=(
        "Verify until Ctrl-C: changed rows a while after each change, and every row once in"
        " [verify] days."
    ),
)
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0),
    help="With --continuous: stop after this many seconds.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON to standard output."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    tables: tuple[str, ...],
    how: str,
    seconds: float | None,
    config: str | None,
    *,
    repair: bool,
    apply: bool,
    continuous: bool,
    as_json: bool,
) -> int:
    """Compare the downstream with the upstream at a live checkpoint, without pausing replication.

    Tables are globs; without them all are compared.

    The servers compute checksums. Where these differ, rows are compared one by one and listed: the
    key, both sides' values, and the row's last change in the binlog. Exit code 0 if all is equal, 1
    if not.

    --repair prints SQL for you to check and run; the script leaves the COMMIT to you. With --apply
    a backfill copies the rows that differ from TiDB, in order with replication, and they are
    compared again: exit code 0 if they are equal then.

    This is a job: `sluice jobs` shows its progress, pauses or cancels it from any machine.
    """
    if (
        (apply and not repair)
        or (seconds is not None and not continuous)
        or (continuous and (tables or repair))
    ):
        raise click.UsageError(
            "--apply goes with --repair, --for with --continuous, which compares all tables"
        )
    if continuous:
        from sluice.cli._verify_continuous import run_continuously

        return run_continuously(settings_for_write(ctx, config), seconds, as_json=as_json)
    said = {"tables": tables, "how": how}
    if not repair:
        return run_command(ctx, config, "verify", said, as_json=as_json)
    from sluice.cli._verify_repair import run_and_repair

    return run_and_repair(settings_for_write(ctx, config), said, apply=apply, as_json=as_json)
