"""sluice jobs: list and control long-running jobs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._settings import config_option, operator_name, settings_of
from sluice.etl.display_units import counted, format_duration, format_size

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Jobs, JobStatus

_FOLLOW_INTERVAL_S = 1.0


@click.group("jobs", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON object a line.")
@config_option
@click.pass_context
def command(ctx: click.Context, config: str | None, *, as_json: bool) -> None:
    """List and control long-running jobs (bootstrap, backfill, snapshot, restore, verify).

    Without a command: list them.

    Jobs are recorded below the relay log's URL, so this works from any machine.
    """
    if ctx.invoked_subcommand is None:
        _list(_jobs(settings_of(ctx, config)), as_json=as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON object a line.")
@config_option
@click.pass_context
def list_(ctx: click.Context, config: str | None, *, as_json: bool) -> None:
    """List all jobs, the newest last."""
    _list(_jobs(settings_of(ctx, config)), as_json=as_json)


@command.command("show")
@click.argument("name", metavar="ID")
@click.option(
    "--follow", is_flag=True, help="Refresh every second, until the job is no longer running."
)
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON object.")
@config_option
@click.pass_context
def show(ctx: click.Context, name: str, config: str | None, *, follow: bool, as_json: bool) -> None:
    """Show one job: its request, each table's progress, its result."""
    from sluice.relay.jobs import CANCELLING, PAUSING, RUNNING

    job = _jobs(settings_of(ctx, config)).get(name)
    while True:
        status = job.status()
        text = (
            json.dumps(status.to_json(), ensure_ascii=False)
            if as_json
            else "\n".join(_lines(status))
        )
        click.echo(text)
        if not follow or status.state not in (RUNNING, PAUSING, CANCELLING):
            return
        time.sleep(_FOLLOW_INTERVAL_S)


@command.command("pause")
@click.argument("name", metavar="ID")
@config_option
@click.pass_context
def pause(ctx: click.Context, name: str, config: str | None) -> None:
    """Pause a job. It stops after the chunks in progress."""
    from sluice.relay.jobs import PAUSE, PAUSING

    entry = _jobs(settings_of(ctx, config)).get(name).order(PAUSE, operator_name())
    if entry.state == PAUSING:
        click.echo(
            f"{name} pauses, after what is under way: `sluice jobs show {name}` shows when it has"
        )
    else:
        click.echo(f"{name} is {entry.state}: no process runs it")


@command.command("resume")
@click.argument("name", metavar="ID")
@config_option
@click.pass_context
def resume(ctx: click.Context, name: str, config: str | None) -> int:
    """Resume a paused, interrupted or failed job in this process; or withdraw an order to pause."""
    from sluice.relay.jobs import INTERRUPTED, PAUSING, RESUME

    settings = settings_of(ctx, config)
    job = _jobs(settings).get(name)
    if job.status().state == PAUSING:
        job.order(RESUME, operator_name())
        click.echo(f"{name} goes on where it runs")
        return 0
    if job.status().state != INTERRUPTED:
        job.order(RESUME, operator_name())  # raises if it is over, or is to be cancelled
    from sluice.cli._job_run import run_job

    return run_job(settings, job, "sluice jobs resume")


@command.command("cancel")
@click.argument("name", metavar="ID")
@config_option
@click.pass_context
def cancel(ctx: click.Context, name: str, config: str | None) -> int:
    """Cancel a job. What it began is undone if that is safe; the command prints what stays."""
    from sluice.relay.jobs import CANCEL, CANCELLING

    settings = settings_of(ctx, config)
    job = _jobs(settings).get(name)
    job.order(CANCEL, operator_name())
    status = job.status()
    if status.state == CANCELLING and status.entry.runner is not None:
        click.echo(
            f"{name} is being cancelled by {status.entry.runner}: `sluice jobs show {name}` shows"
            " what stays"
        )
        return 0
    from sluice.cli._job_run import cancel_job

    return cancel_job(settings, job)


@command.command("forget")
@click.argument("names", metavar="ID...", nargs=-1)
@click.option(
    "--older-than",
    metavar="AGE",
    help="Every job that finished longer ago than this, such as 30d or 12h.",
)
@config_option
@click.pass_context
def forget(
    ctx: click.Context, names: tuple[str, ...], older_than: str | None, config: str | None
) -> None:
    """Remove the records of finished jobs."""
    if bool(names) == bool(older_than):
        raise click.UsageError("which jobs? Give their ids, or --older-than", ctx)
    jobs = _jobs(settings_of(ctx, config))
    for name in names or _older(jobs, older_than or ""):
        jobs.forget(name)
        click.echo(f"forgot {name}")


def _older(jobs: Jobs, age: str) -> list[str]:
    from sluice.etl.settings.pauses import keep_ms
    from sluice.relay.jobs import FINAL_STATES

    try:
        before = time.time() * 1000 - keep_ms(age)
    except ValueError as error:
        raise click.UsageError(f"--older-than: {error}") from None
    entries = {job.id: job.entry() for job in jobs.list()}
    return [
        name
        for name, entry in entries.items()
        if entry.state in FINAL_STATES and entry.made_ms < before
    ]


def _jobs(settings: Settings) -> Jobs:
    from sluice.relay.jobs import Jobs

    return Jobs.for_pipeline(settings.open_relay())


def _list(jobs: Jobs, *, as_json: bool) -> None:
    from sluice.relay.jobs.spec import format_ms

    found = [job.status() for job in jobs.list()]
    if not found and not as_json:
        click.echo("there are no jobs")
    for status in found:
        document = status.to_json()
        if as_json:
            click.echo(json.dumps(document, ensure_ascii=False))
            continue
        first, *more = job_lines(document)
        click.echo(first)
        for line in [f"asked for by {status.spec.by}, {format_ms(status.spec.made_ms)}", *more]:
            click.echo(f"    {line}")


def _lines(status: JobStatus) -> list[str]:
    from sluice.relay.jobs.spec import format_ms

    document = status.to_json()
    first, *more = job_lines(document)
    lines = [
        f"job       {first}",
        (
            f"asked     {status.spec.kind} of {status.spec.touches}, by {status.spec.by},"
            f" {format_ms(status.spec.made_ms)}"
        ),
        f"since     {format_ms(status.entry.made_ms)}, by {status.entry.by}",
        *(f"          {line}" for line in more),
    ]
    for name, table in sorted(document["progress"]["tables"].items()):
        lines.append(f"table     {name}: {done(table)}")
    return lines


def job_lines(job: dict[str, Any]) -> list[str]:
    """Return a job's state and progress, and what it needs from people, if anything."""
    progress = job["progress"]
    doing = (
        f" ({', '.join(progress['doing'])})"
        if progress["doing"] and job["state"] == "running"
        else ""
    )
    far = f", {done(progress)}" if progress["tables"] else ""
    lines = [f"{job['id']}: {job['state']}{far}{doing}"]
    if job["state"] == "running" and progress["rows_per_s"]:
        left = progress["left_s"]
        lines.append(
            f"{progress['rows_per_s']:,.0f} rows/s, {format_size(progress['bytes_per_s'])}/s"
            f"{'' if left is None else f', about {format_duration(left)} left'}"
        )
    if job["message"]:
        lines.append(job["message"])
    if job["hint"]:
        lines.append(f"hint: {job['hint']}")
    return lines


def done(progress: dict[str, Any]) -> str:
    """Return how much of a job, or of a table, is done, from its progress.

    What is unknown is left out.
    """
    size_in_all, chunks_in_all = progress["bytes_in_all"], progress["chunks_in_all"]
    percent = "" if progress["percent"] is None else f"{progress['percent']} %"
    read = format_size(progress["bytes"]) if size_in_all else ""
    if progress["bytes"] < size_in_all:
        read = f"{read} of about {format_size(size_in_all)}"
    of = f" of {chunks_in_all:,}" if progress["chunks"] < chunks_in_all else ""
    chunks = (
        f"{progress['chunks']:,}{of}"
        f" chunk{'' if (chunks_in_all or progress['chunks']) == 1 else 's'}"
    )
    return ", ".join(
        part for part in (percent, counted(progress["rows"], "row"), read, chunks) if part
    )
