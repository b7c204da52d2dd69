"""What `sluice verify --repair` does behind the comparison."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sluice.cli._settings import operator_name
from sluice.cli._verify_job import compare_tables, report, run_job

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job

_COMMAND = "sluice verify --repair"


def run_and_repair(settings: Settings, job: Job, *, apply: bool, as_json: bool) -> int:
    """Compare, and print the SQL that makes rows right, or have a backfill do it and compare again.

    The exit code: 0 if all is equal in the end.
    """
    from sluice.etl.verify import create_verify
    from sluice.etl.verify.repair import create_repair, recheck_request, repair_sql

    summary = compare_tables(settings, job, _COMMAND)
    click.echo(report(summary, as_json=as_json), err=not apply)  # the result is SQL alone
    if summary.state != "done" or summary.equal:
        return int(summary.state != "done")
    if not apply:
        for line in repair_sql(settings, summary):
            sys.stdout.buffer.write(line + b"\n")
        return 1
    from sluice.cli import _backfill_job

    repair = create_repair(settings, summary, operator_name())
    click.echo(f"job {repair.id}", err=True)
    if _backfill_job.run_job(settings, repair, f"{_COMMAND} --apply", as_json=as_json):
        return 1
    once_more = create_verify(settings, recheck_request(summary), operator_name())
    click.echo(f"job {once_more.id}", err=True)
    return run_job(settings, once_more, f"{_COMMAND} --apply", as_json=as_json)
