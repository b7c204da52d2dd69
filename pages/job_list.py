"""List jobs as the page shows them.

A finished job never changes and is read once; the others are read side by side.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sluice.etl.display_units import counted
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.job_kinds import dag_run_of
from sluice.relay.jobs import (
    DONE,
    FAILED,
    FINAL_STATES,
    INTERRUPTED,
    PAUSED,
    PAUSING,
    RUNNING,
    Jobs,
    JobStatus,
)

__all__ = ["job_document", "jobs_document", "statuses"]

MAX_JOBS_SHOWN = 100
_MAX_TABLES_SHOWN = 100
_finished_cache: dict[tuple[str, str], JobStatus] = {}
_finished_cache_lock = threading.Lock()
_MAX_CACHED = 2000
_MAX_THREADS = 8


def jobs_document(pipeline: NamedPipeline) -> dict[str, Any]:
    """Return the newest jobs, newest first, unfinished ones before the others.

    `more`: how many aren't shown.
    """
    found = sorted(statuses(pipeline), key=lambda one: one.state in FINAL_STATES)
    return {
        "jobs": [_status_document(pipeline, status) for status in found[:MAX_JOBS_SHOWN]],
        "more": max(0, len(found) - MAX_JOBS_SHOWN),
    }


def statuses(pipeline: NamedPipeline) -> list[JobStatus]:
    """Return how every job stands, the newest first."""
    relay = pipeline.settings.open_relay()
    jobs = Jobs.for_pipeline(relay)
    names = jobs.names()
    _forget(relay.url, set(names))
    with ThreadPoolExecutor(_MAX_THREADS, "sluice-jobs") as readers:
        every = list(readers.map(lambda name: _status(jobs, relay.url, name), names))
    found = [status for status in every if status and status.spec.pipeline == relay.pipeline]
    return sorted(found, key=lambda one: (-one.spec.made_ms, one.spec.id))


def job_document(pipeline: NamedPipeline, name: str, wanted: str) -> dict[str, Any]:
    """Return one job with its tables whose names hold `wanted`, the unfinished first."""
    status = Jobs.for_pipeline(pipeline.settings.open_relay()).get(name).status()
    document = status.to_json()
    tables = [
        {"name": table, **values}
        for table, values in document["progress"]["tables"].items()
        if wanted.lower() in table.lower()
    ]
    tables.sort(key=lambda table: (table["percent"] == 100, -table["bytes_in_all"], table["name"]))
    return {
        "job": _status_document(pipeline, status),
        "asked": document["asked"],
        "result": document["result"],
        "tables": tables[:_MAX_TABLES_SHOWN],
        "more": max(0, len(tables) - _MAX_TABLES_SHOWN),
    }


def _status(jobs: Jobs, url: str, name: str) -> JobStatus | None:
    with _finished_cache_lock:
        cached = _finished_cache.get((url, name))
    if cached is not None:
        return cached
    job = jobs.find(name)
    if job is None:
        return None
    status = job.status()
    if status.state in FINAL_STATES:
        with _finished_cache_lock:
            _finished_cache[(url, name)] = status
            while len(_finished_cache) > _MAX_CACHED:
                del _finished_cache[next(iter(_finished_cache))]
    return status


def _forget(url: str, there: set[str]) -> None:
    """Drop finished jobs that no longer exist: a new job may get the name of a removed one."""
    with _finished_cache_lock:
        for key in [key for key in _finished_cache if key[0] == url and key[1] not in there]:
            del _finished_cache[key]


def _status_document(pipeline: NamedPipeline, status: JobStatus) -> dict[str, Any]:
    document = status.to_json()
    progress = document.pop("progress")
    tables = progress.pop("tables")
    document.pop("asked")
    outcome = _outcome(status.spec.kind, document.pop("result") or {})
    origin = dag_run_of(status.spec)
    dag, run = origin or ("", "")
    return document | {
        "outcome": outcome,
        "touches": "" if status.spec.touches.tables == () else str(status.spec.touches),
        "progress": progress
        | {
            "tables": len(tables),
            "tables_done": _unfinished_rank(tables, is_done=status.state == DONE),
        },
        "run": {"dag": dag, "dag_id": pipeline.dag_id(dag), "id": run} if origin else None,
        "orders": allowed_orders(status, by_dag=origin is not None),
    }


def _outcome(kind: str, result: dict[str, Any]) -> str:
    """Return what a verification found, in words; "" for other jobs, and before it has ended."""
    if kind != "verify" or "compared" not in result:
        return ""
    if unequal := len(result.get("unequal", ())):
        return f"{counted(unequal, 'table')} not equal"
    return f"{counted(result['compared'], 'table')} equal"


def _unfinished_rank(tables: dict[str, dict[str, Any]], *, is_done: bool) -> int:
    """Count finished tables; a table of unknown size counts only once the job has ended."""
    return sum(
        table["percent"] == 100 and bool(is_done or table["bytes_in_all"] or table["chunks_in_all"])
        for table in tables.values()
    )


def allowed_orders(status: JobStatus, *, by_dag: bool) -> list[str]:
    """Return the actions that a job in this state allows."""
    if status.state in FINAL_STATES:
        return []
    wanted = ["cancel"]
    if status.state == RUNNING:
        wanted.insert(0, "pause")
    if status.state == PAUSING or (by_dag and status.state in (PAUSED, FAILED, INTERRUPTED)):
        wanted.insert(0, "resume")
    return wanted
