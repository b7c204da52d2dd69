"""sluice pause: pause landing or applying."""

from __future__ import annotations

import click

from sluice.cli._settings import config_option, settings_of
from sluice.cli._suggestions import Choice


@click.command("pause")
@click.argument("what", type=Choice(["land", "apply", "both"]), default="both")
@config_option
@click.pass_context
def command(ctx: click.Context, what: str, config: str | None) -> None:
    """Pause landing, applying or both until `sluice resume`.

    The pause outlives DAG runs and restarts.
    """
    from sluice.etl import operate

    click.echo(operate.pause(settings_of(ctx, config), what))
