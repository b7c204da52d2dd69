"""sluice txn: skip one transaction."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option, operator


@click.group("txn")
def command() -> None:
    """Skip one transaction."""


@command.command("skip")
@click.argument("commit_ts", type=int)
@click.option("--why", default="", help="Kept with the decision.")
@config_option
@click.pass_context
def skip(ctx: click.Context, commit_ts: int, why: str, config: str | None) -> None:
    """Leave the transaction committed at COMMIT_TS out of the downstream. It stays in the relay log, unless it can't
    even be landed. It holds at the next attempt.
    """
    from etl import operate

    click.echo(operate.skip_transaction(acting_on(ctx, config), commit_ts, operator(), why))
