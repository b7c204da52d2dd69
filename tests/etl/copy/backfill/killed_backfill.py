"""Runs a backfill's job in a process of its own, and kills it (SIGKILL) around the n-th thing it
writes down, or removes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.etl.copy.backfill import run_backfill
from sluice.etl.copy.backfill.reader import ReadRequest, ReadResult, read_chunk
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.settings import load_settings
from sluice.relay import RelayLog
from sluice.relay.jobs import Runner
from sluice.relay.storage import LocalStorage

_WRITES = ("create", "replace", "remove")


def killed(config: Path, job: str, at: int, *, before: bool, what: str = "") -> int:
    """Run the job until it writes for the `at`-th time, or does `what` of `_WRITES`.

    The exit code.
    """
    when = "before" if before else "after"
    arguments = [
        sys.executable,
        "-m",
        __name__,
        str(config),
        job,
        str(at),
        when,
        what or ",".join(_WRITES),
    ]
    return subprocess.run(
        arguments, cwd=Path(__file__).parents[4], check=False, timeout=120
    ).returncode


def _count(at: int, when: str, what: str) -> None:
    """Of what is written about aligned chunks, and about how far the job is."""
    seen = 0

    def counting(name: str) -> Callable[..., Any]:
        done = getattr(LocalStorage, name)

        def wrapped(self: LocalStorage, path: str, *rest: Any) -> Any:
            nonlocal seen
            counts = path.startswith("aligned-chunks/") or path.endswith(("frontier.json", ".load"))
            seen += counts
            if counts and seen == at and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            found = done(self, path, *rest)
            if counts and seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return wrapped

    for name in what.split(","):
        setattr(LocalStorage, name, counting(name))


def main(config: str, job: str, at: str, when: str, what: str) -> None:
    settings = load_settings(config)
    _count(int(at), when, what)

    def read(order: ReadRequest) -> ReadResult:
        with TidbSession(TidbAddress.from_settings(settings.upstream)) as session:
            return read_chunk(session, RelayLog.open(settings.relay.url).storage, order)

    run_backfill(settings, job, Runner("to be killed"), read=read)


if __name__ == "__main__":
    main(*sys.argv[1:])
