"""sluice verify: compare both sides at a live checkpoint, and repair what differs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sluice.cli._job_run import print_summary, run_command, run_job, run_to_summary
from sluice.cli._settings import config_option, operator_name, settings_of
from sluice.cli._suggestions import Choice
from sluice.etl.tasks.job_kinds import job_kind

if TYPE_CHECKING:
    from sluice.etl.settings import Settings

_COMMAND = "sluice verify --repair"


@click.command("verify")
@click.argument("tables", metavar="[SCHEMA.TABLE]...", nargs=-1)
@click.option(
    "--how", type=Choice(["auto", "upstream", "archive"]), default="auto", show_default=True,
    help="upstream: with TiDB at [upstream] sql-host, as of the checkpoint; archive: with what"
    " Spark computes from snapshot and archive; auto: with TiDB if it can be reached.",
)  # fmt: skip
@click.option(
    "--repair",
    is_flag=True,
    help="Print the SQL that would make the downstream's rows equal to the upstream's.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="With --repair: copy these rows by a backfill, and compare them again.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help=(
        "Verify until Ctrl-C: changed rows a while after each change, and every row once in"
        " [verify] days."
    ),
)
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0),
    help="With --continuous: stop after this many seconds.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON to standard output."
)
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    tables: tuple[str, ...],
    how: str,
    seconds: float | None,
    config: str | None,
    *,
    repair: bool,
    apply: bool,
    continuous: bool,
    as_json: bool,
) -> int:
    """Compare the downstream with the upstream at a live checkpoint, without pausing replication.

    Tables are globs; without them all are compared.

    The servers compute checksums. Where these differ, rows are compared one by one and listed: the
    key, both sides' values, and the row's last change in the binlog. Exit code 0 if all is equal, 1
    if not.

    --repair prints SQL for you to check and run; the script leaves the COMMIT to you. With --apply
    a backfill copies the rows that differ from TiDB, in order with replication, and they are
    compared again: exit code 0 if they are equal then.

    This is a job: `sluice jobs` shows its progress, pauses or cancels it from any machine.
    """
    if (
        (apply and not repair)
        or (seconds is not None and not continuous)
        or (continuous and (tables or repair))
    ):
        raise click.UsageError(
            "--apply goes with --repair, --for with --continuous, which compares all tables"
        )
    if continuous:
        from sluice.cli._verify_continuous import run_continuously

        return run_continuously(settings_of(ctx, config), seconds, as_json=as_json)
    form = {"tables": tables, "how": how}
    if not repair:
        return run_command(ctx, config, "verify", form, as_json=as_json)
    from sluice.cli.verify import run_and_repair

    return run_and_repair(settings_of(ctx, config), form, apply=apply, as_json=as_json)


def run_and_repair(
    settings: Settings, form: Mapping[str, Any], *, apply: bool, as_json: bool
) -> int:
    """Compare, and print the SQL that makes rows right, or have a backfill do it and compare again.

    The exit code: 0 if all is equal in the end.
    """
    from sluice.etl.verify import create_verify
    from sluice.etl.verify.repair import create_repair, recheck_request, repair_sql

    kind = job_kind("verify")
    job = kind.create(settings, kind.request(settings, form), operator_name())
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
