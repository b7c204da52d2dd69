"""This process as the one that runs a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cli._settings import operator
from cli._stack import stop_signals_raise

if TYPE_CHECKING:
    from etl.settings import Settings
    from relay.jobs import Runner


def this_process(command: str) -> Runner:
    """This process as the one that runs a job."""
    from relay.jobs import Runner

    return Runner(f"`{command}` of {operator()}")


@contextmanager
def pausing(settings: Settings, kind: str) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP pause the job that is run inside, and say how to go on."""
    from relay.jobs import PAUSED, Jobs

    try:
        with stop_signals_raise():
            yield
    except KeyboardInterrupt:
        for job in Jobs.of(settings.open_relay()).list():
            entry = job.entry()
            if entry.state == PAUSED and job.spec.kind == kind and entry.runner and entry.runner.pid == os.getpid():
                click.echo(
                    f"{job.id} is paused: `sluice jobs resume {job.id}` goes on with it, from any machine", err=True
                )
        raise


def paused_as_ordered() -> int:
    """Says that somebody ordered the job to pause, and how to go on; the exit code."""
    click.echo("paused, as was ordered: `sluice jobs resume`, or the same command, goes on with it")
    return 1
