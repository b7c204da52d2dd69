"""Restores into files in processes of their own, which a signal meets at any step towards the
folder.
"""

from __future__ import annotations

import signal
from pathlib import Path

import sluice.relay.jobs.job
from sluice.etl.history.as_of import run_locally
from sluice.etl.restore import FilesRequest, files_folder, into_files, run_files
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.jobs import Jobs, Runner
from tests.etl.stopped_work import stop_at

MOMENT = 470614793860415502
TABLES = ("bank.cart", "bank.log_nopk")
TABLES_AT_A_TIME = 1


def settings_of(url: str) -> Settings:
    """A pipeline whose downstream nobody asks."""
    return Settings(Upstream("unused"), Relay(url), Downstream("unused"))


def request_for(folder: str) -> FilesRequest:
    """The same in every process."""
    return FilesRequest(MOMENT, TABLES, Path(folder))


def write(url: str, folder: str, job: str, told: str, stop: str, how: str) -> None:
    """Run the job, or go on with it.

    `stop` is the number of the step before which the signal `how` comes.
    """
    into_files._TABLES_PER_QUERY = TABLES_AT_A_TIME
    sluice.relay.jobs.job.DEAD_AFTER_S = 0.1
    files_folder._LOCK_TIMEOUT_S = 0.2
    found = Jobs(RelayLog.open(url).storage).get(job)
    with Path(told).open("w", buffering=1, encoding="utf-8") as steps:
        stop_at(stop, steps, signal.Signals[how], within=Path(folder))
        run_files(settings_of(url), found, Runner("a test"), compute=run_locally)
