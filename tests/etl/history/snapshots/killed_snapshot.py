"""A snapshot's job in a process of its own, killed before its order number `at`: python -m … FOLDER
PD_URL JOB AT

`make` is one for a process that may stand still.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sluice.etl.history.snapshots import from_source
from sluice.etl.history.snapshots.run import run_snapshot
from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.jobs import Jobs, Runner
from sluice.relay.jobs import job as job_module
from tests.etl.history.snapshots.making import here

CHUNKS_A_GROUP = 2


def settings_of(folder: str, pd_url: str) -> Settings:
    """A pipeline whose downstream nobody asks."""
    return Settings(
        Upstream(pd_url), Relay(f"file://{folder}/relay"), Downstream(host="127.0.0.1", port=1),
        apply=Apply(worker_count=2),
    )  # fmt: skip


def make(folder: str, pd_url: str, name: str) -> None:
    """Run the job, or go on with it as soon as nothing is heard of who runs it."""
    from_source._MAX_GROUP_CHUNKS = CHUNKS_A_GROUP
    job_module.DEAD_AFTER_S = 0.1
    settings = settings_of(folder, pd_url)
    job = Jobs(RelayLog.open(settings.relay.url).storage).get(name)
    run_snapshot(settings, name, Runner("test"), make=here(settings, job))


def main() -> None:
    folder, pd_url, name, at = sys.argv[1:]
    from_source._MAX_GROUP_CHUNKS = CHUNKS_A_GROUP
    settings = settings_of(str(Path(folder)), pd_url)
    job = Jobs(RelayLog.open(settings.relay.url).storage).get(name)

    def then(done: int) -> None:
        if done == int(at):
            os.kill(os.getpid(), signal.SIGKILL)

    run_snapshot(settings, name, Runner("killed"), make=here(settings, job, then))


if __name__ == "__main__":
    main()
