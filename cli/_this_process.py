"""Run jobs in this process: its name as a runner, and signals that pause the job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import operator_name
from sluice.cli._stack import signals_as_interrupt

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Runner


def local_runner(command: str) -> Runner:
    """Return this process as the runner of a job."""
    from sluice.relay.jobs import Runner

    return Runner(f"`{command}` of {operator_name()}")


@contextmanager
def pause_on_signals(settings: Settings, kind: str) -> Iterator[None]:
    """Pause the job that is run inside on Ctrl-C, SIGTERM and SIGHUP; print how to continue it."""
    from sluice.relay.jobs import PAUSED, Jobs

    try:
        with signals_as_interrupt():
            yield
    except KeyboardInterrupt:
        for job in Jobs.for_pipeline(settings.open_relay()).list():
            entry = job.entry()
            if (
                entry.state == PAUSED
                and job.spec.kind == kind
                and entry.runner
                and entry.runner.pid == os.getpid()
            ):
                click.echo(
                    f"{job.id} is paused: `sluice jobs resume {job.id}` goes on with it, from any"
                    " machine",
                    err=True,
                )
        raise


def print_paused() -> int:
    """Print that an operator paused the job, and how to continue it; return the exit code."""
    click.echo("paused, as was ordered: `sluice jobs resume`, or the same command, goes on with it")
    return 1
