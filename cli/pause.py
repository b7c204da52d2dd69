"""sluice pause: have landing and applying wait."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option


@click.command("pause")
@click.argument("what", type=click.Choice(["land", "apply", "both"]), default="both")
@config_option
@click.pass_context
def command(ctx: click.Context, what: str, config: str | None) -> None:
    """Have landing, applying or both wait until `sluice resume`, over runs and restarts."""
    from etl import operate

    click.echo(operate.pause(acting_on(ctx, config), what))
