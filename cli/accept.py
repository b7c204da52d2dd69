"""sluice accept: go on from changes that were refused."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, settings_of


@click.command("accept")
@click.argument("refusal")
@config_option
@click.pass_context
def command(ctx: click.Context, refusal: str, config: str | None) -> None:
    """Have changes that were refused, of which others are downstream already, written all the same.

    REFUSAL is the id that the error names. Every row of these changes becomes what it is upstream, whatever was there.
    """
    from sluice.etl import operate

    click.echo(operate.accept(settings_of(ctx, config), refusal))
