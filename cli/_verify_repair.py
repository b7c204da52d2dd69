"""What `sluice verify --repair` does behind the comparison."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from cli._settings import operator
from cli._verify_job import compared_here, report, run_here

if TYPE_CHECKING:
    from etl.settings import Settings
    from relay.jobs import Job

_COMMAND = "sluice verify --repair"


def run_and_repair(settings: Settings, job: Job, *, apply: bool, as_json: bool) -> int:
    """Compare, and print the SQL that makes rows right, or have a backfill do it and compare again. The exit code: 0 if
    all is equal in the end.
    """
    from etl.verify import create_verify
    from etl.verify.repair import again, create_repair, repair_sql

    summary = compared_here(settings, job, _COMMAND)
    click.echo(report(summary, as_json=as_json), err=not apply)  # the result is SQL alone
    if summary.state != "done" or summary.equal:
        return int(summary.state != "done")
    if not apply:
        for line in repair_sql(settings, summary):
            sys.stdout.buffer.write(line + b"\n")
        return 1
    from cli import _backfill_job

    repair = create_repair(settings, summary, operator())
    click.echo(f"job {repair.id}", err=True)
    if _backfill_job.run_here(settings, repair, f"{_COMMAND} --apply", as_json=as_json):
        return 1
    once_more = create_verify(settings, again(summary), operator())
    click.echo(f"job {once_more.id}", err=True)
    return run_here(settings, once_more, f"{_COMMAND} --apply", as_json=as_json)
