"""A run of a restore's job: what is done, stage by stage; each finds what a process before this one has done.

1. what is landed and not archived is archived; what is to be replaced is set aside: `etl.restore.scratch`
2. the base is loaded, as a bootstrap does it: tables, rows, indexes, the checkpoint: `etl.restore.load`
3. the archive is applied from there, as replication does it, from checkpoint to checkpoint: `etl.restore.apply_log`
4. what wasn't asked for goes, views and sequences come; every table is verified
5. the result is written down; then the scratch database goes, and with it what was replaced
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from etl.apply import PastRange
from etl.archive import archive_through
from etl.copy import Progress
from etl.copy.asked import Asked
from etl.copy.base_source import BaseSource
from etl.copy.copy_run import Ordered, Place
from etl.copy.definitions import Definitions
from etl.copy.load_files import remove_files
from etl.downstream import CheckpointTable, MySQLSession
from etl.restore.apply_log import apply_log
from etl.restore.ending import make_others, remove_more
from etl.restore.lineage import Name
from etl.restore.load import LoadBase
from etl.restore.pace import Pace
from etl.restore.plan import RestorePlan
from etl.restore.request import Request
from etl.restore.rows_gone import check_decisions, decided_about
from etl.restore.scratch import Scratch, scratch_schema
from etl.restore.summary import RestoreSummary, Verified
from etl.restore.verify import verify
from etl.restore.ways import Ways
from etl.settings import Settings
from relay.archive import Archive, ArchiveLog
from relay.jobs import CANCELLED, DONE, PAUSE, PAUSED, Job, Run
from relay.storage import open_storage
from relay.url import folder_of

__all__ = ["RestoreRun"]

log = logging.getLogger("sluice.restore")

_STILL_RUNNING_S = 60.0
_RESTORED = "restored.json"
_ENOUGH = 200_000
"""So many rows or changes tell how fast a machine is."""


class RestoreRun:
    """One run, in this process. Raises RestoreError, VerifyError, LeaseLostError, and as loading and applying do."""

    def __init__(
        self, settings: Settings, job: Job, run: Run, plan: RestorePlan, on_progress: Callable[[Progress], None]
    ) -> None:
        self._settings = settings
        self._job = job
        self._run = run
        self._plan = plan
        self._show = on_progress
        self._request = request = Request.from_json(job.spec.asked)
        own = request.settings(settings, scratch_schema(job.spec.token), plan.names)
        # What workers hand over lies where no other job looks.
        self._own = replace(own, relay=replace(own.relay, url=folder_of(settings.relay.url, f"restores/{job.id}")))
        self._session = MySQLSession(self._own.downstream)
        self._checkpoint = CheckpointTable.of(self._session, self._own.downstream, plan.cluster_id)
        self._scratch = Scratch(self._session, self._own.downstream.checkpoint_schema)
        self._began = self._stage_began = time.monotonic()
        self._summary = RestoreSummary(job.id, plan.to, plan.until, len(plan.asked))
        self._stages: dict[str, float] = {}

    def whole(self, ways: Ways) -> RestoreSummary:
        """All of it, up to where it is ordered to stop."""
        try:
            self._connect()
            kept = self._kept()
            if kept is None:
                self._archive()
                self._load(ways)
                self._apply(ways)
                self._end()
                self._verify(ways)
                kept = self._keep()
            return self._over(kept)
        except Ordered:
            return self._stop()
        finally:
            self._session.close()

    def cancel(self) -> RestoreSummary:
        """Give it up: what it made goes, what it replaced comes back."""
        try:
            return self._cancel()
        finally:
            self._session.close()

    # Stages

    def _connect(self) -> None:
        self._doing("connecting")
        self._session.connect()
        if self._kept() is None:
            self._checkpoint.create()
            self._checkpoint.writer_lock().seize(self._session, _STILL_RUNNING_S)
            self._scratch.begin(self._plan.replaced)

    def _archive(self) -> None:
        """Have everything archived that is to be applied."""
        last = Archive.open(self._settings.archive_url).last()
        if last is None or last.hi < self._plan.until:
            self._doing("archiving what is landed")
            stopped = lambda: self._run.order is not None or self._run.is_lost  # noqa: E731
            archive_through(self._settings, self._plan.until, stop=stopped)
            self._doing("archiving what is landed")
            self._stage("archive")

    def _load(self, ways: Ways) -> None:
        plan = self._plan
        wanted = {planned.table.schema_name for planned in plan.copy.tables}
        tables = tuple(planned.table for planned in plan.copy.tables)
        schemas = tuple(schema for schema in plan.schemas if schema.name in wanted)
        definitions = Definitions(plan.since, plan.copy.schema_version, schemas, tables)
        place: Place = self._own, definitions, self._checkpoint, self._session
        made = LoadBase(place, (plan.copy, Asked({})), self._job, self._run, self._show)
        made.log_bytes = plan.cost.log_bytes
        source = BaseSource(self._settings.archive_url, plan.base, plan.since)
        with ways.loads(self._own, source) as make:  # which nobody asks for anything without a base
            made.load(make)
        self._summary = replace(self._summary, base_rows=made.progress.rows, warnings=tuple(made.tables.warnings))
        self._stage("load")

    def _apply(self, ways: Ways) -> None:
        self._doing("applying row changes")
        self._session.close()  # applying has its own
        plan = self._plan
        check_decisions(plan, decided_about(self._settings, plan.since, plan.until))
        windows = ArchiveLog.open(self._settings.archive_url, plan.ids)
        windows.pipeline = self._settings.open_relay().pipeline
        with ways.steps(self._own, windows.url, frozenset(plan.without_rows)) as prepare:
            done = apply_log(
                windows, PastRange(plan.since, plan.until),
                own=self._own, cluster_id=plan.cluster_id, job=self._job, run=self._run, prepare=prepare,
            )  # fmt: skip
        warnings = (*self._summary.warnings, *done.warnings)
        self._summary = replace(self._summary, changes=done.changes, ddls=done.ddls, warnings=warnings)
        self._stage("apply")
        if done.checkpoint < plan.until:
            self._run.look()
            self._run.check()
            raise Ordered

    def _end(self) -> None:
        self._doing("removing what wasn't asked for")
        self._session.connect()
        self._checkpoint.writer_lock().seize(self._session, _STILL_RUNNING_S)
        remove_more(self._scratch, self._targets(self._plan.names), self._targets(_names(self._plan)))
        self._doing("making views and sequences")
        warnings = make_others(self._session, self._own, self._plan.others, self._plan.until)
        self._summary = replace(self._summary, warnings=(*self._summary.warnings, *warnings))

    def _verify(self, ways: Ways) -> None:
        if not self._request.verify:
            self._summary = replace(self._summary, verified=Verified(note="nothing was verified, as was asked for"))
            return
        found = verify(self._settings, self._own, self._plan, self._doing, ways.past())
        self._summary = replace(self._summary, verified=found)
        self._stage("verify")

    def _over(self, kept: dict[str, Any]) -> RestoreSummary:
        """The tables are what was asked for, and that is written down: the rest goes."""
        self._run.check()
        self._clean()
        self._scratch.drop(self._plan.new_schemas)
        self._run.end(DONE, result=kept)
        return RestoreSummary(**{**kept, "verified": Verified(**kept["verified"])})

    # Orders

    def _stop(self) -> RestoreSummary:
        self._run.look()
        if self._run.order == PAUSE:
            self._run.end(PAUSED)
            return replace(self._summary, state=PAUSED)
        return self._cancel()

    def _cancel(self) -> RestoreSummary:
        self._run.doing("taking back what was restored")
        self._session.connect()
        left: list[str] = []
        if self._kept() is not None:  # it is done, and the order came too late: what was asked for is there
            return self._over(self._kept() or {})
        if self._scratch.is_there():
            self._checkpoint.writer_lock().seize(self._session, _STILL_RUNNING_S)
            plan = self._plan
            names = {*plan.names, *((table.schema_name, table.name) for table in plan.others)}
            left = self._scratch.take_back(self._targets(sorted(names)), plan.replaced, plan.new_schemas)
        self._clean()
        summary = replace(self._summary, state=CANCELLED, left=tuple(left))
        way_out = "look at these tables, and remove what nobody needs" if left else ""
        self._run.end(CANCELLED, said="; ".join(left), way_out=way_out, result=asdict(summary))
        return summary

    # Inside

    def _doing(self, what: str) -> None:
        """What comes next. Raises Ordered if the run is to end here, LeaseLostError."""
        self._run.look()
        self._run.check()
        if self._run.order is not None:
            raise Ordered
        self._run.doing(what)
        self._show(Progress(doing=what))

    def _stage(self, name: str) -> None:
        now = time.monotonic()
        self._stages[name] = round(now - self._stage_began, 3)
        self._stage_began = now

    def _targets(self, names: tuple[Name, ...] | list[Name]) -> list[Name]:
        return [(self._request.target_schema(schema), table) for schema, table in names]

    def _clean(self) -> None:
        remove_files(open_storage(self._own.relay.url))

    def _kept(self) -> dict[str, Any] | None:
        """The result, if the tables are what was asked for."""
        try:
            found: dict[str, Any] = json.loads(self._storage().read(self._job.ledger.path(_RESTORED)))
        except FileNotFoundError:
            return None
        return found

    def _keep(self) -> dict[str, Any]:
        self._run.check()
        seconds = round(time.monotonic() - self._began, 3)
        summary = replace(self._summary, seconds=seconds, stages_s=dict(self._stages))
        document = asdict(replace(summary, pace=_pace(summary)))
        self._storage().replace(self._job.ledger.path(_RESTORED), json.dumps(document).encode())
        return document

    def _storage(self) -> Any:
        return open_storage(self._settings.relay.url)


def _names(plan: RestorePlan) -> list[Name]:
    return [(table.schema_name, table.name) for table in (*plan.asked, *plan.others)]


def _pace(summary: RestoreSummary) -> dict[str, float]:
    """How long a row and a change took, where there were enough of them."""
    found: dict[str, float] = {}
    if summary.base_rows >= _ENOUGH:
        found |= {"a_row": summary.stages_s["load"] / summary.base_rows, "a_byte": 0.0}
    if summary.changes >= _ENOUGH:
        found["a_change"] = summary.stages_s["apply"] / summary.changes
    inside = summary.base_rows + summary.changes
    if summary.verified.rows and inside >= _ENOUGH:
        found["verified"] = max(0.0, summary.stages_s["verify"] - Pace().a_verification) / inside
    return found
