"""Jobs of `sluice verify` in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sluice.cli._copy_progress import show_job_progress
from sluice.cli._sizes import format_size

if TYPE_CHECKING:
    from sluice.etl.settings import Settings
    from sluice.etl.verify import Difference, TableResult, VerifySummary
    from sluice.relay.jobs import Job

_MAX_SHOWN = 5
_MAX_VALUE_CHARS = 100


def run_job(settings: Settings, job: Job, command: str, *, as_json: bool = False) -> int:
    """Compare both sides, or continue to, and print the differences.

    Return the exit code: 0 if all is equal.
    """
    summary = compare_tables(settings, job, command)
    click.echo(report(summary, as_json=as_json))
    return 0 if summary.state == "done" and summary.equal else 1


def compare_tables(settings: Settings, job: Job, command: str) -> VerifySummary:
    """Compare both sides, or go on with it, and return what was found."""
    from sluice.cli._this_process import local_runner, pause_on_signals
    from sluice.etl.verify import run_verify

    with pause_on_signals(settings, job.spec.kind), show_job_progress(job):
        return run_verify(settings, job.id, local_runner(command))


def report(summary: VerifySummary, *, as_json: bool) -> str:
    """Return what was found, for scripts or for people."""
    return json.dumps(summary.to_json(), indent=2) if as_json else "\n".join(lines(summary))


def cancel_job(settings: Settings, job: Job) -> int:
    """Give it up; the exit code."""
    from sluice.cli._this_process import local_runner
    from sluice.etl.verify import cancel_verify

    cancel_verify(settings, job.id, local_runner("sluice jobs cancel"))
    click.echo("cancelled")
    return 0


def lines(summary: VerifySummary) -> Iterator[str]:
    """Return the differences as lines for people."""
    if summary.state != "done":
        yield (
            f"{summary.state}: `sluice jobs resume {summary.job}` goes on"
            if summary.state == "paused"
            else "cancelled"
        )
        return
    for table in summary.unequal:
        yield from _table_lines(table)
    yield from (f"{name}: only the downstream has it" for name in summary.only_downstream)
    for table in summary.tables:
        yield from (f"note     {table.name}: {note}" for note in table.notes)
    yield from (f"left out {one.name}: {one.why}" for one in summary.left_out)
    yield from (f"note     {note}" for note in summary.notes)
    yield _total(summary)


def _table_lines(table: TableResult) -> Iterator[str]:
    if table.problem:
        yield f"{table.name}: can't be compared: {table.problem}"
        return
    more = f", and more in {table.more} parts that weren't looked at" if table.more else ""
    yield f"{table.name}: {_rows(table.differences)} of {table.rows:,} differ{more}"
    for one in table.examples[:_MAX_SHOWN]:
        yield from _difference_lines(one)
    if len(table.examples) > _MAX_SHOWN:
        yield (
            f"    … `sluice verify --json` and the job's result have {len(table.examples)} of them"
        )


def _difference_lines(one: Difference) -> Iterator[str]:
    what = {
        "missing": "is missing downstream",
        "extra": "is downstream only",
        "changed": "is another downstream",
    }
    times = f", {one.times} times" if one.times > 1 else ""
    yield f"    {_values(one.key)} {what[one.kind]}{times}"
    for name in one.columns:
        assert one.upstream is not None and one.downstream is not None
        yield (
            f"        {name}: upstream {_text(one.upstream[name])}, downstream"
            f" {_text(one.downstream[name])}"
        )
    row = one.upstream if one.kind == "missing" else one.downstream if one.kind == "extra" else None
    if row is not None and row != one.key:
        yield f"        {_values(row)}"
    if one.binlog:
        yield f"        {one.binlog}" + (f", in the window {one.window}" if one.window else "")


def _total(summary: VerifySummary) -> str:
    rate = summary.rows / max(summary.seconds, 1e-3)
    compared = sum(1 for table in summary.tables if not table.problem)
    found = (
        "equal"
        if summary.equal
        else f"{_rows(summary.differences)} differ, in {len(summary.unequal)} tables"
    )
    if summary.only_downstream:
        found = f"{found}; {len(summary.only_downstream)} tables are downstream only"
    if not summary.tables:
        found = f"nothing was compared, {len(summary.left_out)} tables were left out"
    whose = "TiDB" if summary.how == "upstream" else "snapshot and archive"
    return (
        f"{found}: {compared} tables, {summary.rows:,} rows, about {format_size(summary.bytes)}"
        f" compared with {whose} at the checkpoint {summary.ts} in {summary.seconds:,.1f} s"
        f" ({rate:,.0f} rows/s)"
    )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _values(row: object) -> str:
    assert isinstance(row, dict)
    text = ", ".join(f"{name}={_text(value)}" for name, value in row.items())
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


def _text(value: object) -> str:
    text = (
        "NULL"
        if value is None
        else f"0x{value.hex()}"
        if isinstance(value, bytes)
        else ascii(value)
    )
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
