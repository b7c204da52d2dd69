"""Run jobs of the kind `drill`: try a restore, so that it works and its duration is known.

A drill has a restore made (`sluice.etl.restore`, a job of its own) of some tables as of some moment
into databases of their own, which verifies them; then it drops them. The restore's id is in the
drill's file `restore.json`, so another process continues it, or takes it back.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sluice.errors import SluiceError, ours
from sluice.etl.copy import CopyProgressCounts
from sluice.etl.display_units import counted
from sluice.etl.downstream import open_session
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.history.retain import archive_status
from sluice.etl.restore import (
    RestoreExecutor,
    RestorePlan,
    RestoreRequest,
    RestoreSummary,
    ScratchSchema,
    cancel_restore,
    run_restore,
    scratch_schema_name,
)
from sluice.etl.restore import create_or_resume as create_restore
from sluice.etl.restore.drill.pick_tables import INTO, TableChoice, pick_tables
from sluice.etl.restore.errors import DrillError, DrillFailedError
from sluice.etl.settings import Settings, pauses
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    FAILED,
    FINAL_STATES,
    PAUSED,
    Job,
    JobRun,
    Jobs,
    Runner,
    WriteScope,
    run_every,
)
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.table_name import exactly

__all__ = [
    "KIND",
    "DrillSummary",
    "RestoreTestRequest",
    "cancel_drill",
    "create_or_resume",
    "is_due",
    "run_drill",
]

KIND = "drill"
_RESTORE_FILE = "restore.json"
_FIRST_ASKED_FILE = "drills.json"
_FIRST_DRILL_DELAY_MS = 86_400_000
_ORDER_POLL_INTERVAL_S = 1.0
ShowProgress = Callable[[CopyProgressCounts], None]


@dataclass(frozen=True, slots=True)
class RestoreTestRequest(JsonDocument):
    """A request for a drill of `tables` tables, of at most about `max_bytes` in memory together.

    They are restored as of `ts` (TSO), None: as of any moment that can be restored.
    """

    JSON_COMPLETE: ClassVar = True

    tables: int = 5
    max_bytes: int = 10 * 10**9
    ts: int | None = None


@dataclass(frozen=True, slots=True)
class DrillSummary:
    """Outcome of a drill.

    `seconds` is what restoring and verifying took: the time that it would take in earnest.
    """

    job: str
    ts: int
    names: tuple[str, ...]
    tables: int = 0
    rows: int = 0
    changes: int = 0
    seconds: float = 0.0
    stages_s: Mapping[str, float] | None = None
    verified_tables: int = 0
    state: str = DONE


def is_due(settings: Settings, now_ms: int | None = None) -> bool:
    """Return whether `[archive] drills-every` has passed since the last drill was begun.

    There also has to be something to restore. The first drill is due a day after the first call, or
    after `drills-every` if that is shorter.
    """
    every_ms = settings.archive.drills_every_ms
    if not every_ms or settings.downstream.type != "mysql":
        return False
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    begun = [job.spec.made_ms for job in _jobs(settings).list() if job.spec.kind == KIND]
    last_ms = max(begun, default=_first_asked_ms(settings, now))
    if not pauses.is_due(last_ms, every_ms if begun else min(every_ms, _FIRST_DRILL_DELAY_MS), now):
        return False
    return archive_status(settings).whole_from_ts > 0


def _first_asked_ms(settings: Settings, now: int) -> int:
    """Return when this was called for the first time (Unix ms), which is recorded."""
    storage = settings.open_relay().storage
    with contextlib.suppress(FileExistsError):
        storage.create(_FIRST_ASKED_FILE, json.dumps({"asked_ms": now}).encode() + b"\n")
    return int(json.loads(storage.read(_FIRST_ASKED_FILE))["asked_ms"])


def create_or_resume(settings: Settings, request: RestoreTestRequest, by: str) -> Job:
    """Return the unfinished drill, else a new one.

    What one that failed has left is removed first. Raises DrillError, and as `cancel_drill`.
    """
    if settings.downstream.type != "mysql":
        raise DrillError(
            f"[downstream] type is {settings.downstream.type}: restoring is tried with a database",
            hint="`sluice restore --to` restores to a database anywhere",
        )
    jobs = _jobs(settings)
    for job in jobs.unfinished():
        if job.spec.kind == KIND and job.entry().state != FAILED:
            return job
        if job.spec.kind == KIND:
            cancel_drill(settings, job, Runner(by))
    return jobs.create(
        KIND, request.to_json(), WriteScope(downstream_name(settings.target), (INTO,)), by
    )


def run_drill(
    settings: Settings,
    job: Job,
    runner: Runner,
    *,
    ways: RestoreExecutor | None = None,
    on_progress: ShowProgress = lambda _: None,
) -> DrillSummary:
    """Run the drill, or continue it, until it is done or an operator pauses or cancels it.

    Raises DrillError if nothing can be restored yet, DrillFailedError if restoring failed,
    JobRunsError, JobError, LeaseLostError, DownstreamError, relay errors.
    """
    with job.run(runner) as run:
        choice = _saved_choice(settings, job)
        run.doing(f"restoring {counted(len(choice.tables), 'table')} as of {tso.text(choice.ts)}")
        try:
            restore = _restore(settings, job, choice)
            done = _finished_restore(restore) or _run_restore(
                settings, restore, run, ways, on_progress
            )
        except Exception as error:
            raise _failed(job, choice, error) from error
        if done.state != DONE:
            return _stopped(settings, job, run, choice, done)
        run.doing("dropping what was restored")
        _drop(settings, restore)
        summary = _summary(job, choice, done)
        run.end(DONE, result=asdict(summary) | {"names": list(summary.names)})
    return summary


def cancel_drill(settings: Settings, job: Job, runner: Runner) -> DrillSummary:
    """Cancel a drill that no process runs, and drop what it restored. Raises as `run_drill`."""
    job.order(CANCEL, str(runner))
    with job.run(runner) as run:
        restore = _known_restore(settings, job)
        if restore is not None:
            _cancel_restore(settings, restore, runner)
        run.end(CANCELLED)
    return DrillSummary(job.id, 0, (), state=CANCELLED)


def _saved_choice(settings: Settings, job: Job) -> TableChoice:
    plan = job.plan()
    if plan is None:
        request = RestoreTestRequest.from_json(job.spec.asked)
        choice = pick_tables(
            settings, request.ts, request.tables, request.max_bytes, random.Random(job.spec.token)
        )
        plan = job.save_plan(choice.to_json())
    return TableChoice.from_json(plan)


def _restore(settings: Settings, job: Job, choice: TableChoice) -> Job:
    """Return the restore of this drill.

    If a process was killed before it recorded the restore's id, the same one is found: it isn't
    over.
    """
    known = _known_restore(settings, job)
    if known is not None:
        return known
    restore = create_restore(
        settings,
        RestoreRequest(choice.ts, tuple(map(exactly, choice.tables)), INTO),
        f"the drill {job.id}",
    )
    storage = settings.open_relay().storage
    storage.replace(
        job.files.path(_RESTORE_FILE), json.dumps({"restore": restore.id}).encode() + b"\n"
    )
    return restore


def _known_restore(settings: Settings, job: Job) -> Job | None:
    storage = settings.open_relay().storage
    with contextlib.suppress(FileNotFoundError):
        return _jobs(settings).get(
            json.loads(storage.read(job.files.path(_RESTORE_FILE)))["restore"]
        )
    return None


def _finished_restore(restore: Job) -> RestoreSummary | None:
    """Return the restore's summary, if an earlier process has finished it."""
    entry = restore.entry()
    return RestoreSummary.from_json(entry.result) if entry.state == DONE and entry.result else None


def _run_restore(
    settings: Settings,
    restore: Job,
    run: JobRun,
    ways: RestoreExecutor | None,
    on_progress: ShowProgress,
) -> RestoreSummary:
    with _forward_orders(run, restore):
        return run_restore(
            settings, restore, Runner(f"the {KIND}"), ways=ways, on_progress=on_progress
        )


@contextlib.contextmanager
def _forward_orders(run: JobRun, restore: Job) -> Iterator[None]:
    """Forward the drill's orders to its restore."""

    def pass_on() -> bool:
        if run.order is None:
            return False
        with contextlib.suppress(SluiceError, OSError):
            restore.order(run.order, "the drill")
            return True
        return False

    with run_every(pass_on, _ORDER_POLL_INTERVAL_S, "drill orders"):
        yield


def _stopped(
    settings: Settings, job: Job, run: JobRun, choice: TableChoice, done: RestoreSummary
) -> DrillSummary:
    """End the drill after its restore was paused or cancelled."""
    run.look()
    state = PAUSED if done.state == PAUSED and run.order != CANCEL else CANCELLED
    if state == CANCELLED and (restore := _known_restore(settings, job)) is not None:
        _cancel_restore(settings, restore, Runner(f"the {KIND}"))
    run.end(state)
    return DrillSummary(job.id, choice.ts, choice.tables, state=state)


def _cancel_restore(settings: Settings, restore: Job, runner: Runner) -> None:
    state = restore.entry().state
    if state not in FINAL_STATES:
        cancel_restore(settings, restore, runner)
    elif state == DONE:
        _drop(settings, restore)


def _drop(settings: Settings, restore: Job) -> None:
    """Drop what was restored, and the databases that were made for it; nothing if that was done."""
    plan = RestorePlan.from_json(restore.plan() or {})
    request = RestoreRequest.from_json(restore.spec.asked)
    names = [(request.target_schema(t.schema_name), t.name) for t in (*plan.asked, *plan.others)]
    with open_session(settings.downstream) as session:
        scratch = ScratchSchema(session, scratch_schema_name(restore.spec.token))
        scratch.remove(names)
        scratch.drop(plan.new_schemas)


def _summary(job: Job, choice: TableChoice, done: RestoreSummary) -> DrillSummary:
    verified: Any = done.verified
    tables = verified["tables"] if isinstance(verified, Mapping) else verified.tables
    return DrillSummary(
        job.id,
        choice.ts,
        choice.tables,
        done.tables,
        done.snapshot_rows,
        done.changes,
        done.seconds,
        dict(done.stages_s),
        tables,
    )


def _failed(job: Job, choice: TableChoice, error: Exception) -> SluiceError:
    failure = ours(error)
    return DrillFailedError(
        f"the drill {job.id}: {', '.join(choice.tables)} as of {tso.text(choice.ts)} can't be"
        f" restored: {failure}",
        hint=(
            f"{failure.hint}; then `sluice jobs resume {job.id}` goes on with it, or `sluice drill`"
            " begins another"
        ),
        transient=failure.transient,
    )


def _jobs(settings: Settings) -> Jobs:
    return Jobs.for_pipeline(settings.open_relay())
