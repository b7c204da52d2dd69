"""Jobs of the kind `backfill`: tables copied again beside the DAG `replicate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.copy.backfill.plan import BackfillPlan
from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.backfill.run import (
    KIND,
    BackfillSummary,
    cancel_backfill,
    create_backfill,
    plan_backfill,
    run_backfill,
)
from sluice.etl.copy.errors import BackfillError
from sluice.etl.display_units import counted
from sluice.etl.settings import Settings
from sluice.etl.tasks.form_fields import backfill_request
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
from sluice.relay.jobs import DONE, PAUSED, Job, Runner

__all__ = ["BackfillKind", "RowsDifferError"]


class RowsDifferError(SluiceError):
    """Rows are compared, and aren't the same on both sides."""

    hint = (
        "trigger the DAG with the mode replace for these tables, or look at how they came to differ"
        " first"
    )


class BackfillKind(JobKind):
    """The steps of a backfill."""

    name = KIND
    shares_runs = True

    def request(self, settings: Settings, form: Mapping[str, Any]) -> BackfillRequest:
        return backfill_request(form)

    def plan(self, settings: Settings, request: BackfillRequest) -> BackfillPlan:
        return plan_backfill(settings, request)

    def saved_plan(self, document: Mapping[str, Any]) -> BackfillPlan:
        return BackfillPlan.from_json(document)

    def blocked(self, problems: Iterable[str]) -> BackfillError:
        return BackfillError("\n".join(problems))

    def create(self, settings: Settings, request: BackfillRequest, by: str) -> Job:
        return create_backfill(settings, request, by)

    def run(
        self, settings: Settings, job: Job, runner: Runner, show: ShowProgress
    ) -> BackfillSummary:
        return run_backfill(settings, job.id, runner)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> list[str]:
        note = cancel_backfill(settings, job.id, runner)
        return [f"cancelled: {note or 'what was copied stays'}"]

    def lines(self, summary: BackfillSummary) -> Iterator[str]:
        for name, table in summary.tables.items():
            chunks = counted(table["chunks"], "chunk")
            yield (
                f"{name}: {counted(table['rows'], 'row')} in {chunks}, {table['same']:,} equal,"
                f" {_outcome(summary.mode, table)}"
            )
            yield from (f"  {example}" for example in table["examples"])
        yield from (f"note     {warning}" for warning in summary.warnings)
        rows = summary.total("rows")
        yield (
            f"{summary.state}: {counted(rows, 'row')} in {summary.seconds:,.1f} s"
            f" ({rows / max(summary.seconds, 1e-3):,.0f} rows/s)"
        )
        if summary.state == PAUSED:
            yield f"`sluice jobs resume {summary.job}` goes on"

    def succeeded(self, summary: BackfillSummary) -> bool:
        return summary.state == DONE and not _differs(summary)

    def check(self, summary: BackfillSummary) -> None:
        if _differs(summary):
            raise RowsDifferError(
                f"{counted(summary.differing, 'row differs', 'rows differ')}:"
                f" {dict(summary.tables)}"
            )


def _differs(summary: BackfillSummary) -> bool:
    return summary.mode == "compare" and summary.differing > 0


def _outcome(mode: str, table: Mapping[str, Any]) -> str:
    if mode == "compare":
        return (
            f"{table['inserted']:,} missing, {table['replaced']:,} different,"
            f" {table['deleted']:,} not upstream"
        )
    return (
        f"{table['inserted']:,} added, {table['replaced']:,} replaced, {table['deleted']:,} removed"
        + (f", {table['kept']:,} left as they are" if table["kept"] else "")
        + (f", {table['displaced']:,} in their way removed" if table["displaced"] else "")
    )
