"""The calls that Airflow's processes make to a pipeline: tasks, looks of sensors, and their names.

Arguments and results are JSON values. A call runs in the task's own process, or in an `agent` in
the pipeline's environment where Airflow's has no pipeline. So nothing of Airflow is imported here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

from sluice.etl.settings.pauses import span_ms
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks import airflow_task as tasks
from sluice.etl.tasks.airflow_run import RunDeadline

__all__ = ["CALLS", "ENDS_BY_ITSELF", "interrupt_spark"]

_INTERRUPT_TIMEOUT_S = 3.0
"""How long Spark may take to end its work: Airflow kills a task five seconds after SIGTERM."""
_ANSWER_TIMEOUT_S = 10.0
"""The downstream and the relay log answer within this, or the next look waits for them."""
_CHECKS = {
    "drill": "sluice.etl.tasks.drill:drill",
    "quality": "sluice.expectations.tasks:look",
}
"""What tasks of DAGs do if it is due, by their names in logs."""


def interrupt_spark() -> None:
    """End what this process has Spark do, within three seconds."""
    session = sys.modules.get("sluice.etl.spark.session")
    if session is None:  # its import alone takes as long as Airflow waits
        return
    thread = threading.Thread(target=session.interrupt_all, name="interrupt-spark", daemon=True)
    thread.start()
    thread.join(_INTERRUPT_TIMEOUT_S)


def begin(
    pipeline: NamedPipeline, *, kind: str, form: Mapping[str, Any], run_id: str, scheduled: bool
) -> dict[str, Any]:
    """Plan a job and record it; see `sluice.etl.tasks.job_kinds.begin`."""
    from sluice.etl.tasks import job_kinds

    return tasks.run_job_task(
        pipeline,
        "plan",
        lambda settings: job_kinds.begin(settings, kind, form, run_id, scheduled=scheduled),
    )


def work(
    pipeline: NamedPipeline, kind: str, job: str | None, run_id: str, *, checked: bool = True
) -> dict[str, Any]:
    """Run a job, or resume it; see `sluice.etl.tasks.job_kinds.work`."""
    from sluice.etl.tasks import job_kinds

    return tasks.run_job_task(
        pipeline,
        kind,
        lambda settings: job_kinds.work(settings, kind, job, run_id, checked=checked),
    )


def check(
    pipeline: NamedPipeline, *, what: str, form: Mapping[str, Any], run_id: str, scheduled: bool
) -> dict[str, Any] | None:
    """Do one of `_CHECKS`; None if nothing is due."""
    function: Callable[..., dict[str, Any] | None] = resolve_name(_CHECKS[what])
    return tasks.run_job_task(
        pipeline,
        what,
        lambda settings: function(settings, form, run_id=run_id, scheduled=scheduled),
    )


def bootstrap_step(pipeline: NamedPipeline, step: str, arguments: list[Any]) -> Any:
    """Do a step of a bootstrap: `prepare`, `copy_share` or `finish`."""
    from sluice.etl.tasks import bootstrap

    steps: dict[str, Callable[..., Any]] = {
        "prepare": bootstrap.prepare,
        "copy_share": bootstrap.copy_share,
        "finish": bootstrap.finish,
    }
    function = steps[step]
    return tasks.run_job_task(pipeline, step, lambda settings: function(settings, *arguments))


def land(pipeline: NamedPipeline, run_seconds: float, began_s: float | None) -> dict[str, Any]:
    """Land windows in a worker process until the run's time is up."""
    from sluice.etl.tasks.worker import WorkerSpec, run_in_worker

    time = RunDeadline.of(run_seconds, began_s)

    def in_worker(settings: Any, got_on: Any, stop: Any) -> dict[str, Any]:
        return run_in_worker(WorkerSpec("land", settings), time.left_s, stop, got_on)

    return tasks.run_paired(pipeline, "land", "apply", in_worker)


def apply(
    pipeline: NamedPipeline,
    run_seconds: float,
    began_s: float | None,
    mode: str | None,
    until: str | None,
) -> dict[str, Any]:
    """Apply windows in a worker process until the run's time is up, or through `until`.

    `mode`: None for that of the settings.
    """
    from sluice.etl.tasks.worker import WorkerSpec, run_in_worker

    time = RunDeadline.of(run_seconds, began_s)

    def in_worker(settings: Any, got_on: Any, stop: Any) -> dict[str, Any]:
        until_ts = None
        if until or mode:  # else its imports would be for nothing
            from sluice.etl import operate

            until_ts = operate.upstream_moment(settings, until) if until else None
            settings = operate.settings_for_run(settings, mode) if mode else settings
        return run_in_worker(WorkerSpec("apply", settings, until_ts), time.left_s, stop, got_on)

    return tasks.run_paired(pipeline, "apply", "land", in_worker)


def archive(pipeline: NamedPipeline, run_seconds: float, began_s: float | None) -> dict[str, Any]:
    """Move what is landed into the archive, pass after pass, until the run's time is up."""
    from sluice.etl.tasks import archive as archiving

    time = RunDeadline.of(run_seconds, began_s)
    return tasks.run_task(
        pipeline,
        "archive",
        lambda settings, got_on: archiving.archive(settings, time.left_s(), got_on),
    )


def compact(pipeline: NamedPipeline) -> dict[str, Any]:
    """Merge small files of the archive."""
    from sluice.etl.tasks import archive as archiving

    return tasks.run_task(pipeline, "compact", archiving.compact)


def retain(pipeline: NamedPipeline) -> dict[str, Any]:
    """Remove what the settings no longer keep."""
    from sluice.etl.tasks import retain as retaining

    return tasks.run_task(pipeline, "retain", retaining.retain_or_say_why)


def verify_continuously(pipeline: NamedPipeline, began_s: float | None) -> dict[str, Any]:
    """Compare rows at a low rate for one run."""
    from sluice.etl.verify import continuous_task as watching

    time = RunDeadline.of(watching.RUN_S, began_s)
    return tasks.run_job_task(
        pipeline,
        "verify_continuously",
        lambda settings: watching.run_continuous_task(settings, time.left_s()),
    )


def operate(pipeline: NamedPipeline, form: Mapping[str, str]) -> str:
    """Carry out an operator's action, and return what was done or found."""
    from sluice.etl import operate as operating

    return operating.dispatch(pipeline.settings, operating.OperateForm(**form))


def lineage(pipeline: NamedPipeline, since_ms: int = 0, job: str = "") -> dict[str, Any]:
    """Return the datasets of what applying changed since then (Unix ms), or a job copied."""
    from sluice.etl.operate.lineage import lineage_of_job, lineage_since

    settings = pipeline.settings
    return asdict(lineage_of_job(settings, job) if job else lineage_since(settings, since_ms))


def why_stopped(pipeline: NamedPipeline) -> dict[str, Any] | None:
    """Return why landing or applying has stopped, None while no operator has to act.

    The failure's fields, and `refusal`, the id of a blocked batch, "" if there is none.
    """
    from sluice.etl.operate.status import newest_checkpoint

    settings = pipeline.settings
    relay = settings.open_relay()
    found = [
        each
        for each in relay.failures.list()
        if each.what in ("land", "apply") and not relay.failures.is_answered(each)
    ]
    if not found:
        return None
    failure = max(found, key=lambda each: each.made_ms)
    checkpoint = newest_checkpoint(settings.target, relay)
    if checkpoint is None or isinstance(checkpoint, Exception) or checkpoint.in_flight is None:
        refused = None
    else:
        refused = checkpoint.in_flight.refused
    return {
        "what": failure.what,
        "message": failure.message,
        "hint": failure.hint,
        "made_ms": failure.made_ms,
        "refusal": refused.token if refused is not None else "",
    }


def due_notices(
    pipeline: NamedPipeline, report: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the notices to send now; `report`: what a task met, as `TaskReport` has it."""
    from sluice.etl.operate import notices

    met = notices.TaskReport(**report) if report is not None else None
    found = notices.due_notices(pipeline.settings, span_ms(pipeline.airflow.notify_lag), met)
    return [asdict(notice) for notice in found]


def mark_sent(pipeline: NamedPipeline, keys: list[str]) -> None:
    """Record that the messages of these notices were sent."""
    from sluice.etl.operate import notices

    notices.mark_sent(pipeline.settings, keys)


def digest(pipeline: NamedPipeline) -> dict[str, Any]:
    """Return the digest of the last day."""
    from sluice.etl.operate.notices.digest import write_digest

    return asdict(write_digest(pipeline.settings, pipeline.name))


def completed_through(pipeline: NamedPipeline, place: str) -> dict[str, Any]:
    """Return the TSO through which a place is complete, 0 for nothing, and why it isn't known.

    While the downstream doesn't answer, its last known checkpoint counts. Raises SettingsError, and
    what keeps the archive from being read.
    """
    from sluice.etl.settings.errors import SettingsError

    settings = pipeline.settings
    if place == "downstream":
        from sluice.etl.operate.overview import known_checkpoint

        known = known_checkpoint(settings, _ANSWER_TIMEOUT_S)
        return {"ts": known.at_ts or 0, "problem": known.problem}
    if place == "archive":
        from sluice.relay.archive import Archive

        last = Archive.open(settings.archive_url).last()
        return {"ts": last.hi if last is not None else 0, "problem": ""}
    raise SettingsError(f"place {place!r}: there are downstream and archive")


def serve_pages(pipeline: NamedPipeline, socket: str) -> None:
    """Serve the pages' JSON for Airflow's api-server at a Unix socket, until it ends."""
    from sluice.pages.serving import serve_on_socket

    del pipeline  # each request names its own
    serve_on_socket(socket)


def watch_replication(
    pipeline: NamedPipeline, run_seconds: float, began_s: float | None
) -> dict[str, Any]:
    """Watch the service `sluice replicate` until the run's time is up."""
    from sluice.airflow.service_watch import watch

    return watch(pipeline, RunDeadline.of(run_seconds, began_s).countdown())


def serve_replication(
    pipeline: NamedPipeline, name: str, run_seconds: float, began_s: float | None
) -> None:
    """Replicate or stand by, as `sluice replicate` does, until the run's time is up.

    The next run's task has the same `name` and goes on from this one. With a dead parent the task
    no longer belongs to Airflow, which begins another one, so its time is up, too.
    """
    from sluice.etl.tasks.service import ReplicationService
    from sluice.etl.tasks.worker import stop_on_sigterm

    left_s, parent = RunDeadline.of(run_seconds, began_s).countdown(), os.getppid()
    stop = threading.Event()
    with stop_on_sigterm(stop):
        ReplicationService(pipeline, name).run(
            stop, lambda: left_s() if os.getppid() == parent else 0.0
        )


CALLS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        apply,
        archive,
        begin,
        bootstrap_step,
        check,
        compact,
        completed_through,
        digest,
        due_notices,
        land,
        lineage,
        mark_sent,
        operate,
        retain,
        serve_pages,
        serve_replication,
        verify_continuously,
        watch_replication,
        why_stopped,
        work,
    )
}
ENDS_BY_ITSELF = frozenset({"apply", "land", "serve_replication"})
"""Calls that notice a SIGTERM, and the end of their caller, by themselves."""
