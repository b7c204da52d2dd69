"""Jobs of the kind `drill`: restores that are tried before they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.etl.display_units import counted, format_duration
from sluice.etl.restore.drill.job import (
    KIND,
    DrillSummary,
    RestoreTestRequest,
    cancel_drill,
    create_or_resume,
    is_due,
    run_drill,
)
from sluice.etl.settings import Settings
from sluice.etl.tasks.form_fields import drill_request, in_upstreams_time
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress, begin, work
from sluice.relay.jobs import DONE, PAUSED, Job, Runner
from sluice.tidb import tso

__all__ = ["DrillKind", "drill"]

_CANCELLED = "cancelled: what was restored is dropped"


class DrillKind(JobKind):
    """The steps of a restore drill."""

    name = KIND
    shows_counts = True

    def not_due(self, settings: Settings) -> str:
        if is_due(settings):
            return ""
        return (
            "no drill: the last one is younger than [archive] drills-every"
            f" ({settings.archive.drills_every}), or there is no snapshot yet"
        )

    def request(self, settings: Settings, form: Mapping[str, Any]) -> RestoreTestRequest:
        return drill_request(in_upstreams_time(settings, form))

    def find(self, settings: Settings, request: RestoreTestRequest) -> None:
        """Leave it to `create`, which first removes what a failed drill left."""

    def create(self, settings: Settings, request: RestoreTestRequest, by: str) -> Job:
        return create_or_resume(settings, request, by)

    def run(self, settings: Settings, job: Job, runner: Runner, show: ShowProgress) -> DrillSummary:
        return run_drill(settings, job, runner, on_progress=show)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> list[str]:
        cancel_drill(settings, job, runner)
        return [_CANCELLED]

    def lines(self, summary: DrillSummary) -> list[str]:
        if summary.state == PAUSED:
            return [f"paused: `sluice jobs resume {summary.job}` goes on"]
        if summary.state != DONE:
            return [_CANCELLED]
        verified = (
            f", {counted(summary.verified_tables, 'table')} verified"
            if summary.verified_tables
            else ", nothing was verified"
        )
        return [
            *(f"table    {name}" for name in summary.names),
            f"as of {tso.text(summary.ts)}: {counted(summary.rows, 'row')} of the snapshot and"
            f" {counted(summary.changes, 'row change')} restored in"
            f" {format_duration(summary.seconds)}{verified}; then dropped",
        ]


def drill(
    settings: Settings, form: Mapping[str, Any], *, run_id: str, scheduled: bool
) -> dict[str, Any] | None:
    """Try to restore what the form says (`tables`, `max_mb`, `at`), as the DAG's only task.

    Return None if the schedule began the run and no drill is due. Raises MomentError, and as
    `run_drill`.
    """
    job = begin(settings, KIND, form, run_id, scheduled=scheduled)["job"]
    return work(settings, KIND, job, run_id) or None
