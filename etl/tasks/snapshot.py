"""Jobs of the kind `snapshot`: snapshots of all tables in the archive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.etl.display_units import counted, format_size
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.plan import SnapshotPlan
from sluice.etl.history.snapshots.preflight import abbreviate_problems
from sluice.etl.history.snapshots.request import AUTO, SnapshotJobSummary, SnapshotRequest
from sluice.etl.history.snapshots.run import (
    KIND,
    cancel_snapshot,
    create_snapshot,
    plan_snapshot,
    run_snapshot,
)
from sluice.etl.settings import Settings
from sluice.etl.settings.pauses import is_due
from sluice.etl.tasks.form_fields import snapshot_request
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress
from sluice.relay.archive import Archive
from sluice.relay.jobs import DONE, PAUSED, Job, Jobs, Runner
from sluice.tidb import tso

__all__ = ["SnapshotKind"]


class SnapshotKind(JobKind):
    """The steps of a snapshot."""

    name = KIND
    shares_runs = True

    def not_due(self, settings: Settings) -> str:
        every_ms = settings.archive.snapshots_every_ms
        if not every_ms:
            return "snapshots are made only when asked for: [archive] snapshots-every is empty"
        archive = Archive.open(settings.archive_url)
        if archive.first() is None:
            return "nothing is archived yet, so no snapshot is of use"
        youngest = archive.snapshots.latest(2**63 - 1)
        made_ms = tso.physical_ms(youngest.ts) if youngest is not None else 0
        if youngest is not None and not is_due(made_ms, every_ms, time.time() * 1000):
            return (
                f"the snapshot {youngest.id} is younger than [archive] snapshots-every ="
                f" {settings.archive.snapshots_every}"
            )
        return ""

    def request(self, settings: Settings, form: Mapping[str, Any]) -> SnapshotRequest:
        return snapshot_request(form, settings.archive.snapshots_from)

    def find(self, settings: Settings, request: SnapshotRequest) -> Job | None:
        asked = None if request.source == AUTO else request.to_json()
        return Jobs.for_pipeline(settings.open_relay()).find_open(KIND, asked, planned=True)

    def plan(self, settings: Settings, request: SnapshotRequest) -> SnapshotPlan:
        return plan_snapshot(settings, request)

    def saved_plan(self, document: Mapping[str, Any]) -> SnapshotPlan:
        return SnapshotPlan.from_json(document)

    def blocked(self, problems: Iterable[str]) -> SnapshotError:
        return SnapshotError(abbreviate_problems(list(problems)))

    def create(self, settings: Settings, request: SnapshotRequest, by: str) -> Job:
        return create_snapshot(settings, request, by)

    def run(
        self, settings: Settings, job: Job, runner: Runner, show: ShowProgress
    ) -> SnapshotJobSummary:
        return run_snapshot(settings, job.id, runner)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> list[str]:
        cancel_snapshot(settings, job.id, runner)
        return ["cancelled: nothing of it stays"]

    def lines(self, summary: SnapshotJobSummary) -> list[str]:
        if summary.state == PAUSED:
            return [f"paused: `sluice jobs resume {summary.job}` goes on"]
        if summary.state != DONE:
            return ["cancelled"]
        rate = summary.copied_bytes / max(summary.seconds, 1e-3) / 1e6
        referred = (
            f", {summary.referred} of them as they lie in older snapshots"
            if summary.referred
            else ""
        )
        return [
            f"{summary.snapshot}: {counted(summary.tables, 'table')}{referred},"
            f" {counted(summary.rows, 'row')},"
            f" {format_size(summary.file_bytes)}; {counted(summary.copied_rows, 'row')},"
            f" {format_size(summary.copied_bytes)} in memory, were copied in"
            f" {summary.seconds:,.1f} s ({rate:,.1f} MB/s)"
        ]
