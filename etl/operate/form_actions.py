"""Run an action of the DAG `operate` with the fields of its form, as the command line does."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from sluice.etl.changes.formats.sql_scripts import split_statements
from sluice.etl.downstream.ownership import describe_pipeline
from sluice.etl.operate.commands import (
    BOTH,
    OperateError,
    notes_on_paused_dag,
    pause,
    resume,
    run_until,
)
from sluice.etl.operate.override_commands import (
    accept,
    remove_override,
    replace_ddl,
    skip_ddl,
    skip_transaction,
)
from sluice.etl.operate.status import status
from sluice.etl.operate.window_view import describe, find_window, latest_windows
from sluice.etl.settings import Settings
from sluice.etl.upstream_clock import upstream_moment
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCEL, CANCELLING, PAUSE, PAUSING, Jobs
from sluice.tidb import tso

log = logging.getLogger("sluice")

ACTIONS = (
    "show",
    "status",
    "pause",
    "resume",
    "run-until",
    "skip-txn",
    "skip-ddl",
    "replace-ddl",
    "remove-override",
    "accept",
    "jobs",
    "pause-job",
    "cancel-job",
    "takeover",
    "handover",
)
"""The actions of the DAG `operate`."""


@dataclass(frozen=True, slots=True)
class OperateForm:
    """A form of the DAG `operate`: one of ACTIONS, and the values of the other fields.

    `by`: the requester's name, kept with an override.
    """

    action: str
    value: str = ""
    sql: str = ""
    by: str = ""
    why: str = ""


def dispatch(settings: Settings, form: OperateForm) -> str:
    """Run the action; return what was done or found, as text. Raises ValueError, JobError."""
    text = _dispatch(settings, form)
    return (
        text
        if form.action in ("show", "status", "jobs")
        else f"{describe_pipeline(settings)}\n{text}"
    )


def _dispatch(settings: Settings, form: OperateForm) -> str:
    value = form.value.strip()
    match form.action:
        case "show":
            return _windows_json(settings.open_relay(), value)
        case "status":
            return json.dumps(status(settings), indent=1, ensure_ascii=False)
        case "pause":
            return pause(settings, value or BOTH)
        case "resume":
            return "\n".join([resume(settings, value or BOTH), *notes_on_paused_dag(settings)])
        case "run-until":
            return run_until(settings, upstream_moment(settings, value))
        case "skip-txn":
            commit_ts, start_ts = _one_of_several(value)
            return skip_transaction(settings, commit_ts, form.by, form.why, start_ts)
        case "skip-ddl":
            return skip_ddl(settings, _one_of_several(value)[0], form.by, form.why)
        case "replace-ddl":
            return replace_ddl(
                settings, _number(value), split_statements(form.sql), form.by, form.why
            )
        case "remove-override":
            return remove_override(settings, *_one_of_several(value))
        case "takeover" | "handover":
            return _take_or_hand_over(settings, form.action)
        case "accept":
            return accept(settings, value)
        case "jobs":
            found = _jobs(settings).list()
            return json.dumps(
                [job.status().to_json() for job in found], indent=1, ensure_ascii=False
            )
        case "pause-job" | "cancel-job":
            return order_job(
                settings, value, PAUSE if form.action == "pause-job" else CANCEL, form.by
            )
    raise OperateError(f"action {form.action!r}: there are {', '.join(ACTIONS)}")


def _take_or_hand_over(settings: Settings, action: str) -> str:
    from sluice.etl.operate.handover import hand_over
    from sluice.etl.operate.takeover import take_over

    if action == "takeover":
        return take_over(settings, log.info)
    done = hand_over(settings, log.info)
    return "\n".join(
        [
            f"handed over: {done.place} is complete through {tso.text(done.commit_ts)}. Next:",
            *done.next_steps,
        ]
    )


def _jobs(settings: Settings) -> Jobs:
    return Jobs.for_pipeline(settings.open_relay())


def order_job(settings: Settings, name: str, what: str, by: str) -> str:
    """Ask for PAUSE or CANCEL of a job; what comes of it. Raises JobError."""
    job = _jobs(settings).get(name)
    job.order(what, by)
    state = job.status().state
    if state in (PAUSING, CANCELLING) and job.entry().runner is not None:
        return f"{job.id} is {state}: {job.entry().runner} does so after what is under way"
    if what == CANCEL:
        return (
            f"{job.id} is to be cancelled, and no process runs it: `sluice jobs cancel {job.id}`,"
            " or its DAG, does so"
        )
    return f"{job.id} is {state}: no process runs it"


def _one_of_several(value: str) -> tuple[int, int]:
    """Return a commit_ts, and the start_ts behind a dash or 0."""
    commit_ts, _, start_ts = value.partition("-")
    return _number(commit_ts), _number(start_ts) if start_ts else 0


def _number(value: str) -> int:
    if not value.isdigit():
        raise OperateError(
            f"value {value!r}: a commit timestamp (or, for a DDL, a job id) is needed"
        )
    return int(value)


def _windows_json(relay: RelayLog, value: str) -> str:
    windows = [find_window(relay, _number(value))[0]] if value else latest_windows(relay, 1)
    return json.dumps([describe(relay, window) for window in windows], indent=1, ensure_ascii=False)
