"""Jobs of the kind `verify`: both sides compared at a live checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from sluice.etl.display_units import counted, format_size, format_value
from sluice.etl.settings import Settings
from sluice.etl.settings.pauses import is_due
from sluice.etl.tasks.form_fields import verify_request
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
from sluice.etl.verify import Difference, TableResult, VerifySummary
from sluice.etl.verify.result import UnequalError, VerifyRequest
from sluice.etl.verify.run import KIND, cancel_verify, create_verify, run_verify
from sluice.relay.jobs import DONE, Job, Runner
from sluice.relay.verification_log import CONTINUOUS, Verifications

__all__ = ["VerifyKind", "lines"]

_MAX_JOBS_CHECKED = 50
_MAX_SHOWN = 5
_MAX_VALUE_CHARS = 100


class VerifyKind(JobKind):
    """The steps of a verification."""

    name = KIND
    shares_runs = True

    def not_due(self, settings: Settings) -> str:
        every_ms = settings.verify.every_ms
        if not every_ms:
            return "both sides are compared only when asked for: [verify] every is empty"
        runs = Verifications(settings.open_relay()).runs(_MAX_JOBS_CHECKED)
        last = next((run for run in runs if run.how != CONTINUOUS and run.state == DONE), None)
        if last is not None and not is_due(last.at_ms, every_ms, time.time() * 1000):
            return (
                f"{last.job} compared both sides less than [verify] every ="
                f" {settings.verify.every} ago"
            )
        return ""

    def request(self, settings: Settings, form: Mapping[str, Any]) -> VerifyRequest:
        return verify_request(form)

    def create(self, settings: Settings, request: VerifyRequest, by: str) -> Job:
        return create_verify(settings, request, by)

    def run(
        self, settings: Settings, job: Job, runner: Runner, show: ShowProgress
    ) -> VerifySummary:
        return run_verify(settings, job.id, runner)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> list[str]:
        cancel_verify(settings, job.id, runner)
        return ["cancelled"]

    def lines(self, summary: VerifySummary) -> Iterator[str]:
        return lines(summary)

    def succeeded(self, summary: VerifySummary) -> bool:
        return summary.state == DONE and summary.equal

    def check(self, summary: VerifySummary) -> None:
        if not summary.equal:
            raise UnequalError.from_summary(summary)


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
    yield f"{table.name}: {counted(table.differences, 'row')} of {table.rows:,} differ{more}"
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
        sides = (
            f"{side} {format_value(row[name], _MAX_VALUE_CHARS)}"
            for side, row in (("upstream", one.upstream), ("downstream", one.downstream))
        )
        yield f"        {name}: {', '.join(sides)}"
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
        else f"{counted(summary.differences, 'row differs', 'rows differ')}, in"
        f" {counted(len(summary.unequal), 'table')}"
    )
    if summary.only_downstream:
        found = f"{found}; {len(summary.only_downstream)} tables are downstream only"
    if not summary.tables:
        found = f"nothing was compared, {counted(len(summary.left_out), 'table')} left out"
    whose = "TiDB" if summary.how == "upstream" else "snapshot and archive"
    return (
        f"{found}: {counted(compared, 'table')}, {counted(summary.rows, 'row')}, about"
        f" {format_size(summary.bytes)}"
        f" compared with {whose} at the checkpoint {summary.ts} in {summary.seconds:,.1f} s"
        f" ({rate:,.0f} rows/s)"
    )


def _values(row: object) -> str:
    assert isinstance(row, dict)
    values = (f"{name}={format_value(value, _MAX_VALUE_CHARS)}" for name, value in row.items())
    text = ", ".join(values)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
