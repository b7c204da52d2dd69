"""Jobs of the kinds `restore` and `restore-files`: tables as of a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.etl.display_units import counted
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.files_folder import FilesSummary
from sluice.etl.restore.files_plan import FilesPlan, plan_files
from sluice.etl.restore.jobs import (
    cancel_files,
    cancel_restore,
    create_or_resume,
    run_files,
    run_restore,
)
from sluice.etl.restore.plan import RestorePlan, RestoreSummary
from sluice.etl.restore.planner import plan_restore
from sluice.etl.restore.request import FilesRequest, RestoreRequest
from sluice.etl.settings import Settings
from sluice.etl.tasks.form_fields import (
    check_restore_allowed,
    files_request,
    in_upstreams_time,
    restore_request,
)
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
from sluice.relay.jobs import CANCELLED, PAUSED, Job, Jobs, Runner
from sluice.tidb import tso

__all__ = ["FilesKind", "RestoreKind"]

Request = RestoreRequest | FilesRequest
Summary = RestoreSummary | FilesSummary


class RestoreKind(JobKind):
    """The steps of a restore; its form asks for a restore into files, too."""

    name = RestoreRequest.KIND
    shows_counts = True

    def check_allowed(self, settings: Settings, form: Mapping[str, Any]) -> None:
        check_restore_allowed(settings, form)

    def request(self, settings: Settings, form: Mapping[str, Any]) -> Request:
        form = in_upstreams_time(settings, form)
        return files_request(form) or restore_request(form)

    def find(self, settings: Settings, request: Request) -> Job | None:
        jobs = Jobs.for_pipeline(settings.open_relay())
        return jobs.find_open(request.KIND, request.to_json())

    def plan(self, settings: Settings, request: Request) -> RestorePlan | FilesPlan:
        if isinstance(request, FilesRequest):
            return plan_files(settings, request)
        return plan_restore(settings, request)

    def saved_plan(self, document: Mapping[str, Any]) -> RestorePlan | FilesPlan:
        return (FilesPlan if "request" in document else RestorePlan).from_json(document)

    def blocked(self, problems: Iterable[str]) -> RestoreError:
        return RestoreError("\n".join(problems))

    def create(self, settings: Settings, request: Request, by: str) -> Job:
        return create_or_resume(settings, request, by)

    def run(self, settings: Settings, job: Job, runner: Runner, show: ShowProgress) -> Summary:
        return run_restore(settings, job, runner, on_progress=show)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> Iterable[str]:
        return self.lines(cancel_restore(settings, job, runner))

    def lines(self, summary: Any) -> Iterator[str]:
        yield from (f"note     {warning}" for warning in summary.warnings)
        if summary.state in (CANCELLED, PAUSED):
            yield from _ended_early(summary)
            return
        verified = summary.verified
        yield (
            f"{summary.tables} tables are in {summary.to} as they were at"
            f" {tso.text(summary.until)}: {counted(summary.snapshot_rows, 'row')} of the snapshot,"
            f" {counted(summary.changes, 'row change')} and {summary.ddls:,} DDL in"
            f" {summary.seconds:,.1f} s"
        )
        if verified.note:
            yield f"note     {verified.note}"
        if verified.tables:
            yield (
                f"verified {counted(verified.tables, 'table')}, {counted(verified.rows, 'row')},"
                " against what Spark"
                f" computes from the archive; {verified.with_tidb} of them against TiDB"
            )


class FilesKind(RestoreKind):
    """The steps of a restore into files."""

    name = FilesRequest.KIND
    shows_counts = False

    def run(self, settings: Settings, job: Job, runner: Runner, show: ShowProgress) -> Summary:
        return run_files(settings, job, runner)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> Iterable[str]:
        return self.lines(cancel_files(settings, job, runner))

    def lines(self, summary: Any) -> Iterator[str]:
        if summary.state in (CANCELLED, PAUSED):
            yield from _ended_early(summary)
            return
        for table in summary.tables:
            yield f"table    {table.name}: {counted(table.rows, 'row')} in {table.file}"
        yield (
            f"{counted(len(summary.tables), 'table')}, {counted(summary.rows, 'row')}, are in"
            f" {summary.folder} as they"
            f" were at {tso.text(summary.until)}; {summary.made} of them were made and verified now"
        )


def _ended_early(summary: Summary) -> Iterator[str]:
    if summary.state == PAUSED:
        yield f"paused: `sluice jobs resume {summary.job}`, or the same command, goes on with it"
        return
    yield from (f"stays    {line}" for line in summary.left)
    but = ", but for what is named" if summary.left else ""
    yield f"cancelled: what was restored is taken back{but}"
