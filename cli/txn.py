"""sluice txn: skip one transaction."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, operator_name, settings_of


@click.group("txn")
def command() -> None:
    """Skip one transaction."""


@command.command("skip")
@click.argument("commit_ts", type=int)
@click.option(
    "--start-ts",
    type=int,
    default=0,
    metavar="TSO",
    help="Which one, if several share the commit ts.",
)
@click.option("--why", default="", help="Reason, kept with the override.")
@config_option
@click.pass_context
def skip(ctx: click.Context, commit_ts: int, start_ts: int, why: str, config: str | None) -> None:
    """Do not apply the transaction committed at COMMIT_TS.

    It stays in the relay log, unless it can't even be landed. The override takes effect at the next
    attempt.
    """
    from sluice.etl import operate

    click.echo(
        operate.skip_transaction(
            settings_of(ctx, config), commit_ts, operator_name(), why, start_ts
        )
    )
