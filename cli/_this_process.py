"""This process as the one that runs a job."""

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
    """This process as the one that runs a job."""
    from sluice.relay.jobs import Runner

    return Runner(f"`{command}` of {operator_name()}")


@contextmanager
def pause_on_signals(settings: Settings, kind: str) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP pause the job that is run inside, and say how to go on."""
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
    """Says that somebody ordered the job to pause, and how to go on; the exit code."""
    click.echo("paused, as was ordered: `sluice jobs resume`, or the same command, goes on with it")
    return 1
