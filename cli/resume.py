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

    In the one-machine stack the DAGs go on too that have paused since a task stopped, that of the archive among them.
    """
    from etl import operate

    settings = acting_on(ctx, config)
    stopped = operate.stopped_dags(settings)
    click.echo(operate.resume(settings, what))
    if named_config(ctx, config) is None and "airflow-api" in stack_of(ctx).running():
        stack = stack_of(ctx)
        airflow = AirflowClient(stack.home, stack.site().ports["airflow"])
        for dag in dict.fromkeys([settings.dag_id("replicate"), *stopped]):
            airflow.pause(dag, paused=False)
            click.echo(f"the DAG {dag} goes on")
    else:
        for line in operate.paused_dag(settings):
            click.echo(line)
