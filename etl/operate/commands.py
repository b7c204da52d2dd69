"""Implement operators' commands, which the command line and the DAG `operate` share.

Each returns what it did, as a line of text.

Nothing here talks to running tasks: they read operators' orders several times a second, and again
before every commit. An order that comes too late is refused: it is written first, and then
compared, behind the lock of the checkpoint, with what is committed (`run_until`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sluice.errors import RequestError
from sluice.etl.downstream import Checkpoint
from sluice.etl.operate.status import failures, locked_checkpoint, newest_checkpoint
from sluice.etl.settings import MODES, Settings, SettingsError
from sluice.relay import Control
from sluice.tidb import tso

log = logging.getLogger("sluice")

BOTH, LAND, APPLY = "both", "land", "apply"
DAG_OF = {"replicate": (LAND, APPLY), "archive": ("archive", "compact")}
"""The tasks that pause their DAG when they stop."""


class OperateError(RequestError, ValueError):
    """An impossible request; the message has the reason and what is possible."""


MODE_AS_SET = "as in sluice.toml"
"""The choice of the DAG `replicate` beside MODES."""


def settings_for_run(settings: Settings, mode: str = MODE_AS_SET) -> Settings:
    """Return the settings with another `[apply] mode` for one run; AS_SET leaves it.

    Raises SettingsError.
    """
    if mode == MODE_AS_SET:
        return settings
    if mode not in MODES:
        raise SettingsError(f"mode {mode!r}: there are {', '.join(MODES)}")
    return replace(settings, apply=replace(settings.apply, mode=mode))


# Pausing, and stopping at a point in time


def pause(settings: Settings, what: str = BOTH) -> str:
    """Pause landing, applying or both."""
    settings.open_relay().change_control(lambda control: _paused(control, what, paused=True))
    return f"{_subject_text(what)} paused; running tasks notice within a second, later ones too"


def resume(settings: Settings, what: str = BOTH) -> str:
    """Resume landing, applying or both.

    With applying, a timestamp at which it was to stop is forgotten. A task that has just stopped
    goes on without its DAG having paused.
    """

    def resumed(control: Control) -> Control:
        control = _paused(control, what, paused=False)
        return control if what == LAND else replace(control, apply_until_ts=None)

    relay = settings.open_relay()
    relay.change_control(resumed)
    for failure in relay.failures.list():
        relay.failures.answer(failure)
    return f"{_subject_text(what)} resumed"


def notes_on_paused_dag(settings: Settings) -> list[str]:
    """Return what else is to be done before stopped tasks go on, one line a DAG.

    [] if no task has stopped.
    """
    return [
        f"the DAG pauses, since {stopped} stopped, when its run is over, unless the task goes on in"
        f" the next seconds: `airflow dags unpause {dag}` once it has paused"
        for dag, stopped in find_stopped_dags(settings).items()
    ]


def find_stopped_dags(settings: Settings) -> dict[str, str]:
    """Return the ids of the DAGs that have paused because a task stopped, and which task.

    Raises relay errors.
    """
    stopped = [failure.what for failure in failures(settings.open_relay())]
    by_dag = {
        kind: " and ".join(what for what in stopped if what in tasks)
        for kind, tasks in DAG_OF.items()
    }
    return {settings.dag_id(kind): tasks for kind, tasks in by_dag.items() if tasks}


def _paused(control: Control, what: str, *, paused: bool) -> Control:
    if what not in (BOTH, LAND, APPLY):
        raise OperateError(f"{what!r} can't be paused; there are {LAND}, {APPLY} and {BOTH}")
    return replace(
        control,
        land_paused=paused if what in (BOTH, LAND) else control.land_paused,
        apply_paused=paused if what in (BOTH, APPLY) else control.apply_paused,
    )


def _subject_text(what: str) -> str:
    return {BOTH: "landing and applying are", LAND: "landing is", APPLY: "applying is"}[what]


def run_until(settings: Settings, ts: int) -> str:
    """Apply to exactly the TSO `ts`, and wait there.

    It may be in the middle of a window. Raises OperateError.
    """
    relay = settings.open_relay()
    checkpoint = newest_checkpoint(settings.target, relay)
    _check_reachable(checkpoint, ts)
    before = relay.control()
    relay.change_control(lambda control: replace(control, apply_paused=False, apply_until_ts=ts))
    with locked_checkpoint(settings.target, relay) as checkpoint:
        try:
            _check_reachable(checkpoint, ts)
        except OperateError:
            relay.change_control(
                lambda control: (
                    replace(
                        control,
                        apply_paused=before.apply_paused,
                        apply_until_ts=before.apply_until_ts,
                    )
                    if control.apply_until_ts == ts
                    else control
                )
            )
            raise
    unknown = (
        f"; whether the downstream is beyond it already is unknown now ({checkpoint}): `sluice"
        " status` says where it is"
        if isinstance(checkpoint, Exception)
        else ""
    )
    return (
        f"applying goes to {tso.text(ts)} and waits there; `sluice resume` lets it go on{unknown}"
    )


def _check_reachable(checkpoint: Checkpoint | Exception | None, ts: int) -> None:
    """Raise OperateError if the downstream is beyond `ts`, or will be once what is begun ends."""
    if not isinstance(checkpoint, Checkpoint):
        return
    if checkpoint.commit_ts > ts:
        raise OperateError(
            f"the downstream is at {tso.text(checkpoint.commit_ts)} already, after {tso.text(ts)}:"
            " nothing goes back"
        )
    if checkpoint.in_flight is not None and checkpoint.in_flight.until > ts:
        raise OperateError(
            f"several sessions are writing the changes after {tso.text(checkpoint.commit_ts)}"
            f" through {tso.text(checkpoint.in_flight.until)}, and parts of them are downstream:"
            f" applying can't stop at {tso.text(ts)} between; it can at"
            f" {checkpoint.in_flight.until}"
        )
    if checkpoint.rows_through > ts:
        raise OperateError(
            f"the rows that were committed at {tso.text(checkpoint.rows_through)} are downstream:"
            f" applying can't stop at {tso.text(ts)} before it; it can at {checkpoint.rows_through}"
        )
    if checkpoint.pending is not None and checkpoint.pending.commit_ts > ts:
        raise OperateError(
            f"the DDL at {tso.text(checkpoint.pending.commit_ts)} is begun: applying can't stop at"
            f" {tso.text(ts)} before it; it can at {checkpoint.pending.commit_ts}"
        )
