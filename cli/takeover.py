"""sluice takeover: make the downstream this pipeline's."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option


@click.command("takeover")
@click.option("--copied", "tables", metavar="SCHEMA.TABLE", multiple=True, help="A table without a key, made what it was upstream at the checkpoint; may be repeated.")
@config_option
@click.pass_context
def command(ctx: click.Context, tables: tuple[str, ...], config: str | None) -> None:
    """Take the downstream over, from where its checkpoint is, and let applying go on.

    Needed after applying was stopped because a Drainer, or another pipeline, wrote to the same downstream; not needed the first time, when
    the Drainer was stopped before. Refused, with exit code 1, while somebody else may be writing.
    """
    from etl import handover

    if tables:
        click.echo(handover.copied(acting_on(ctx, config), tables))
        return
    click.echo(handover.take_over(acting_on(ctx, config), click.echo))
