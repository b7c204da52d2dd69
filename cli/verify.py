"""sluice verify: whether both sides are equal."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, operator_name, settings_for_write


@click.command("verify")
@click.argument("tables", metavar="[SCHEMA.TABLE]...", nargs=-1)
@click.option(
    "--how", type=click.Choice(["auto", "upstream", "archive"]), default="auto", show_default=True,
    help="upstream: with TiDB at [upstream] sql-host, as it was at the checkpoint; archive: with what Spark computes"
    " from base and archive; auto: with TiDB if it can be asked.",
)  # fmt: skip
@click.option("--repair", is_flag=True, help="Print the SQL that would make the downstream's rows right.")
@click.option("--apply", is_flag=True, help="With --repair: have a backfill bring these rows, and compare them again.")
@click.option(
    "--continuous",
    is_flag=True,
    help="Go on: compare what was changed a while later, and every row once in [verify] days, until Ctrl-C.",
)
@click.option("--for", "seconds", type=click.FloatRange(min=0), help="With --continuous: for so many seconds.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
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
    """Compare the downstream with the upstream at a live checkpoint, without a pause. Tables are globs; all without.

    The servers compute checksums, and where these differ the rows are looked at: each with its key, what either side
    has, and what the binlog says of it last. Exit code 0 if all is equal, 1 if not.

    --repair prints SQL for people to read and to run, in one transaction that they commit. With --apply the rows that
    differ come from TiDB by a backfill, in the order in which replication goes on, and are compared again: exit code 0
    if they are right then.

    It is a job: `sluice jobs` shows how far it is, from anywhere, pauses it or gives it up.
    """
    from sluice.cli._verify_job import run_job
    from sluice.etl.verify import VerifyRequest, create_verify

    settings = settings_for_write(ctx, config)
    if (apply and not repair) or (seconds is not None and not continuous) or (continuous and (tables or repair)):
        raise click.UsageError("--apply goes with --repair, --for with --continuous, which compares all tables")
    if continuous:
        from sluice.cli._verify_continuous import run_continuously

        return run_continuously(settings, seconds, as_json=as_json)
    job = create_verify(settings, VerifyRequest(tables, how), operator_name())
    click.echo(f"job {job.id}", err=True)
    if repair:
        from sluice.cli._verify_repair import run_and_repair

        return run_and_repair(settings, job, apply=apply, as_json=as_json)
    return run_job(settings, job, "sluice verify", as_json=as_json)
