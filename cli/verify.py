"""sluice verify: whether both sides are equal."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option, operator


@click.command("verify")
@click.argument("tables", metavar="[SCHEMA.TABLE]...", nargs=-1)
@click.option(
    "--how", type=click.Choice(["auto", "upstream", "archive"]), default="auto", show_default=True,
    help="upstream: with TiDB at [upstream] sql-host, as it was at the checkpoint; archive: with what Spark computes"
    " from base and archive; auto: with TiDB if it can be asked.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
@config_option
@click.pass_context
def command(ctx: click.Context, /, tables: tuple[str, ...], how: str, config: str | None, *, as_json: bool) -> int:
    """Compare the downstream with the upstream at a live checkpoint, without a pause. Tables are globs; all without.

    The servers compute checksums, and where these differ the rows are looked at: each with its key, what either side
    has, and what the binlog says of it last. Exit code 0 if all is equal, 1 if not.

    It is a job: `sluice jobs` shows how far it is, from anywhere, pauses it or gives it up.
    """
    from cli._verify_job import run_here
    from etl.verify import VerifyRequest, create_verify

    settings = acting_on(ctx, config)
    job = create_verify(settings, VerifyRequest(tables, how), operator())
    click.echo(f"job {job.id}", err=as_json)
    return run_here(settings, job, "sluice verify", as_json=as_json)
