"""sluice resume: have landing and applying go on."""

from __future__ import annotations

import click

from cli._settings import acting_on, config_option, named_config
from cli._stack import stack_of
from embedded.control import AirflowClient


@click.command("resume")
@click.argument("what", type=click.Choice(["land", "apply", "both"]), default="both")
@config_option
@click.pass_context
def command(ctx: click.Context, what: str, config: str | None) -> None:
    """Have landing, applying or both go on, also beyond what `sluice run-until` said.

    In the one-machine stack the DAG goes on too, if it has paused since a task stopped.
    """
    from etl import operate

    settings = acting_on(ctx, config)
    click.echo(operate.resume(settings, what))
    if named_config(ctx, config) is None and "airflow-api" in stack_of(ctx).running():
        stack = stack_of(ctx)
        AirflowClient(stack.home, stack.site().ports["airflow"]).pause(paused=False)
        click.echo("the DAG replicate goes on")
    else:
        for line in operate.paused_dag(settings):
            click.echo(line)
