"""Jobs of the kind `reapply`: past windows applied again; the command line alone runs them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.etl.copy import CopyProgressCounts
from sluice.etl.display_units import counted
from sluice.etl.settings import Settings
from sluice.etl.tasks.form_fields import in_upstreams_time, reapply_request
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
from sluice.etl.verify.reapply import (
    ReplayPlan,
    ReplayRangeError,
    ReplayRequest,
    ReplaySummary,
    cancel_reapply,
    create_or_resume,
    make_replay_plan,
    run_reapply,
)
from sluice.relay.jobs import Job, JobCounts, Runner, TableProgress
from sluice.tidb import tso

__all__ = ["ReapplyKind"]


class ReapplyKind(JobKind):
    """The steps of a reapply."""

    name = ReplayRequest.KIND
    shows_counts = True

    def request(self, settings: Settings, form: Mapping[str, Any]) -> ReplayRequest:
        return reapply_request(in_upstreams_time(settings, form))

    def plan(self, settings: Settings, request: ReplayRequest) -> ReplayPlan:
        return make_replay_plan(settings, request)

    def blocked(self, problems: Iterable[str]) -> ReplayRangeError:
        return ReplayRangeError("\n".join(problems))

    def create(self, settings: Settings, request: ReplayRequest, by: str) -> Job:
        return create_or_resume(settings, request, by)

    def run(
        self, settings: Settings, job: Job, runner: Runner, show: ShowProgress
    ) -> ReplaySummary:
        began = time.monotonic()

        def counts(done: JobCounts, of: TableProgress) -> None:
            left = of.bytes_in_all - of.done.bytes
            show(
                CopyProgressCounts(
                    left,
                    0,
                    done.bytes,
                    done.bytes,
                    0,
                    done.rows,
                    doing="row changes",
                    began_s=began,
                )
            )

        return run_reapply(settings, job, runner, on_progress=counts)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> list[str]:
        return [f"cancelled: {cancel_reapply(settings, job, runner)}"]

    def lines(self, summary: ReplaySummary) -> Iterator[str]:
        yield from (f"note     {warning}" for warning in summary.warnings)
        for name, count in summary.repaired.items():
            yield (
                f"{name}: {counted(count['rows'], 'row')} looked at, {count['same']:,} were right,"
                f" {count['inserted']:,} added, {count['replaced']:,} replaced,"
                f" {count['deleted']:,} removed"
            )
        if summary.is_repair:
            yield f"{'repaired' if summary.is_done else 'ended early'}, in {summary.seconds:,.1f} s"
            return
        yield (
            f"{summary.to} has what was committed after {tso.text(summary.since)} through"
            f" {tso.text(summary.through)}: {counted(summary.transactions, 'transaction')},"
            f" {counted(summary.changes, 'row change')} and {summary.ddls:,} DDL in"
            f" {summary.seconds:,.1f} s"
        )
        if not summary.is_done:
            yield (
                f"it was to go through {tso.text(summary.until)}; `sluice jobs show {summary.job}`"
                " shows who stopped it"
            )

    def succeeded(self, summary: ReplaySummary) -> bool:
        return summary.is_done
