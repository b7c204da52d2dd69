"""sluice txn: skip one transaction, and list those that lost conflicts."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, operator_name, settings_of


@click.group("txn")
def command() -> None:
    """Skip one transaction; list changes that lost conflicts."""


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


@command.command("conflicts")
@config_option
@click.pass_context
def conflicts(ctx: click.Context, config: str | None) -> None:
    """List the changes that lost against younger ones of the downstream, the newest last.

    They are the last 1,000 where two clusters replicate each other; a metric counts all.
    """
    from sluice.relay.measures import ConflictHistory

    found = ConflictHistory(settings_of(ctx, config).open_relay()).load()
    for one in found:
        click.echo(one.text)
    if not found:
        click.echo("no conflicts")
