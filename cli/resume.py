"""sluice resume: let landing or applying continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import choose_pipeline, config_option, settings_of
from sluice.cli._stack import stack_of
from sluice.cli._suggestions import Choice

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

_DAG_PAUSE_TIMEOUT_S = 60.0
"""A task that has stopped fails after 20 s, the other one of its run ends in 30, and then the
scheduler pauses.
"""
_RESUME_GRACE_S = 3.0
_POLL_INTERVAL_S = 0.5


@click.command("resume")
@click.argument("what", type=Choice(["land", "apply", "both"]), default="both")
@config_option
@click.pass_context
def command(ctx: click.Context, what: str, config: str | None) -> None:
    """Resume landing, applying or both, also past the target of `sluice run-until`.

    In the one-machine stack it also unpauses the DAGs that a stopped task has paused, including
    `archive`.
    """
    from sluice.etl import operate

    settings = settings_of(ctx, config)
    stopped = operate.find_stopped_dags(settings)
    click.echo(operate.resume(settings, what))
    if choose_pipeline(ctx, config).is_stack and "airflow-api" in stack_of(ctx).running():
        from sluice.devstack.control import AirflowClient

        stack = stack_of(ctx)
        airflow = AirflowClient(stack.home, stack.site().ports["airflow"])
        for dag in dict.fromkeys([settings.dag_id("replicate"), *stopped]):
            if dag in stopped:
                _await_pause(partial(airflow.is_paused, dag), partial(_is_stopped, settings, dag))
            airflow.pause(dag, paused=False)
            click.echo(f"the DAG {dag} goes on")
    else:
        if stopped:
            _await_pause(lambda: False, partial(_is_stopped, settings), _RESUME_GRACE_S)
        for line in operate.notes_on_paused_dag(settings):
            click.echo(line)


def _is_stopped(settings: Settings, dag: str = "") -> bool:
    """Return whether a task of the DAG has stopped; "" means any DAG."""
    from sluice.etl import operate

    stopped = operate.find_stopped_dags(settings)
    return dag in stopped if dag else bool(stopped)


def _await_pause(
    is_paused: Callable[[], bool],
    is_stopped: Callable[[], bool],
    wait_s: float = _DAG_PAUSE_TIMEOUT_S,
) -> None:
    """Wait until the DAG has paused, or its task continues.

    A DAG pauses at the end of its run, after its task has stopped. It would pause again if it were
    unpaused before that.
    """
    end = time.monotonic() + wait_s
    while time.monotonic() < end and is_stopped() and not is_paused():
        time.sleep(_POLL_INTERVAL_S)
