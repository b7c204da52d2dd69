"""sluice accept: apply a blocked batch anyway."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, settings_of


@click.command("accept")
@click.argument("refusal")
@config_option
@click.pass_context
def command(ctx: click.Context, refusal: str, config: str | None) -> None:
    """Apply a blocked batch anyway, although part of it is already downstream.

    REFUSAL is the id in the error message. Every row of the batch becomes what it is upstream,
    whatever is downstream.
    """
    from sluice.etl import operate

    click.echo(operate.accept(settings_of(ctx, config), refusal))
