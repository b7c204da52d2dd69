"""Repair differences for `sluice verify --repair`, after the comparison."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.cli._job_run import print_summary, run_job, run_to_summary
from sluice.cli._settings import operator_name
from sluice.etl.tasks.job_kinds import job_kind

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

_COMMAND = "sluice verify --repair"


def run_and_repair(
    settings: Settings, said: Mapping[str, Any], *, apply: bool, as_json: bool
) -> int:
    """Compare, and print the SQL that makes rows right, or have a backfill do it and compare again.

    The exit code: 0 if all is equal in the end.
    """
    from sluice.etl.verify import create_verify
    from sluice.etl.verify.repair import create_repair, recheck_request, repair_sql

    kind = job_kind("verify")
    job = kind.create(settings, kind.request(settings, said), operator_name())
    summary = run_to_summary(settings, job, _COMMAND)
    print_summary(kind, summary, as_json=as_json, err=not apply)  # the result is SQL alone
    if summary.state != "done" or summary.equal:
        return int(summary.state != "done")
    if not apply:
        for line in repair_sql(settings, summary):
            sys.stdout.buffer.write(line + b"\n")
        return 1
    repair = create_repair(settings, summary, operator_name())
    if run_job(settings, repair, f"{_COMMAND} --apply", as_json=as_json):
        return 1
    once_more = create_verify(settings, recheck_request(summary), operator_name())
    return run_job(settings, once_more, f"{_COMMAND} --apply", as_json=as_json)
