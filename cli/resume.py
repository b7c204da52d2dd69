"""sluice resume: have landing and applying go on."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option


@click.command("resume")
@click.argument("what", type=click.Choice(["land", "apply", "both"]), default="both")
@config_option
@click.pass_context
def command(ctx: click.Context, what: str, config: str | None) -> None:
    """Have landing, applying or both go on, also beyond what `sluice run-until` said."""
    from etl import operate

    click.echo(operate.resume(acting_on(ctx, config), what))
