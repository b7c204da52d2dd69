"""A kind of jobs that only counts, and an agent that knows it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from sluice.airflow import agent, calls
from sluice.errors import MachineError
from sluice.etl import retry
from sluice.etl.settings.secrets import connection_of
from sluice.etl.tasks import job_kinds
from sluice.relay.jobs import DONE, Jobs, WriteScope


class Request(SimpleNamespace):
    def to_json(self):
        return {"tables": self.tables}


class CountingKind(job_kinds.JobKind):
    """Counts to what the form says, a step a chunk; a test may have it take long."""

    name = "count"
    at_work = threading.Event()
    limit = 1_000_000

    def request(self, settings, said):
        return Request(tables=said["tables"])

    def create(self, settings, request, by):
        jobs = Jobs.for_pipeline(settings.open_relay())
        job = jobs.create(self.name, request.to_json(), WriteScope("count", ()), by)
        job.save_plan({})
        return job

    def run(self, settings, job, runner, show):
        with job.run(runner) as run:
            logging.getLogger("sluice.count").info("at work")
            for step in range(min(self.limit, int(job.spec.asked["tables"][0]))):
                self.at_work.set()
                run.check_order()
                time.sleep(0.01)
            run.end(DONE, result={"steps": step + 1})
        return SimpleNamespace(state=DONE, warnings=())


def wait_long() -> None:
    """Wait as a task does whose server is away, without its minute."""
    retry._LONG_WAIT_S = 0.0
    retry.RetryBackoff(logging.getLogger("sluice"), "the task wait").after(MachineError("no route"))


def program(folder: Path) -> Path:
    """A program that `[airflow] python` may name: an agent in a process of its own."""
    path = folder / "agent"
    root = Path(__file__).resolve().parents[2]
    path.write_text(
        f"#!/bin/sh\ncd {root} && exec {sys.executable} -m tests.sluice_airflow.counting_kind\n"
    )
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    job_kinds.job_kind = lambda name: CountingKind()
    calls.CALLS = {
        **calls.CALLS,
        "password": lambda pipeline, name: connection_of("a key", name).password,
        "pid": lambda pipeline: os.getpid(),
        "wait": lambda pipeline: wait_long(),
        "stray": lambda pipeline: print("for nobody"),
    }
    agent.CALLS = calls.CALLS
    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        del os.environ[name]
    agent.main()
