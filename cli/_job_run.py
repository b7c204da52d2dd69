"""Create, run and cancel jobs in this process, whatever their kind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._json_lines import wants_json
from sluice.cli._settings import operator_name, settings_of
from sluice.cli._stack import signals_as_interrupt
from sluice.etl.tasks.job_kinds import KINDS, job_kind

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
    from sluice.relay.jobs import Job, Runner


def run_command(
    ctx: click.Context, config: str | None, name: str, form: Mapping[str, Any], *,
    plan_only: bool = False, as_json: bool = False,
) -> int:  # fmt: skip
    """Plan what a command's options say, or make a job of the kind `name` and run it.

    Return the exit code.
    """
    settings = settings_of(ctx, config)
    kind = job_kind(name)
    request = kind.request(settings, form)
    if plan_only:
        plan = kind.plan(settings, request)
        as_json = as_json or wants_json()
        click.echo(json.dumps(plan.to_json(), indent=2) if as_json else "\n".join(plan.lines()))
        return 1 if plan.problems else 0
    job = kind.create(settings, request, operator_name())
    return run_job(settings, job, f"sluice {KINDS[name].command}", as_json=as_json)


def run_job(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Run a job, or resume it, and print its outcome; return the exit code."""
    kind = job_kind(job.spec.kind)
    summary = run_to_summary(settings, job, command)
    print_summary(kind, summary, as_json=as_json)
    return 0 if kind.succeeded(summary) else 1


def run_to_summary(settings: Settings, job: Job, command: str) -> Any:
    """Run a job, or resume it, and return its summary."""
    kind = job_kind(job.spec.kind)
    click.echo(f"job {job.id}", err=True)
    with pause_on_signals(settings, job.spec.kind), _progress(kind, job) as show:
        return kind.run(settings, job, local_runner(command), show)


def print_summary(kind: JobKind, summary: Any, *, as_json: bool = False, err: bool = False) -> None:
    """Print a summary, for scripts or for people."""
    as_json = as_json or wants_json()
    text = json.dumps(summary.to_json(), indent=2) if as_json else "\n".join(kind.lines(summary))
    click.echo(text, err=err)


def cancel_job(settings: Settings, job: Job) -> int:
    """Cancel a job that no process runs, and print what stays; return the exit code."""
    runner = local_runner("sluice jobs cancel")
    for line in job_kind(job.spec.kind).cancel(settings, job, runner):
        click.echo(line)
    return 0


def local_runner(command: str) -> Runner:
    """Return this process as the one that runs a job."""
    from sluice.relay.jobs import Runner

    return Runner(f"`{command}` of {operator_name()}")


@contextmanager
def pause_on_signals(settings: Settings, kind: str) -> Iterator[None]:
    """Pause the job that runs inside at Ctrl-C, SIGTERM and SIGHUP; print how to resume it."""
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


@contextmanager
def _progress(kind: JobKind, job: Job) -> Iterator[ShowProgress]:
    from sluice.cli._copy_progress import CopyProgress, show_job_progress

    if kind.shows_counts:
        with CopyProgress() as display:
            yield display.show
    else:
        with show_job_progress(job):
            yield lambda _: None
