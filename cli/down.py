"""sluice down: stop the stack."""

from __future__ import annotations

import click

from sluice.cli._stack import stack_of


@click.command("down")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Stop every process of the stack, including those that a killed command left behind.

    Data is kept.
    """
    lines: list[str] = []
    stack_of(ctx).down(lines.append)
    click.echo("\n".join(lines) or "nothing was running")
