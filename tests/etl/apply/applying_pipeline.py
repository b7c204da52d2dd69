"""Applies one of several pipelines in a process of its own, which is killed (SIGKILL) behind its
n-th batch.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

from sluice.etl.apply import run_apply
from sluice.etl.settings.pipelines import pipelines
from tests.etl.preparing import local_preparer


def main(name: str, batches: int) -> None:
    settings, seen = pipelines()[name].settings, itertools.count(1)
    last = settings.open_relay().last()
    assert last is not None

    def counting(_: object) -> None:
        if next(seen) == batches:
            os.kill(os.getpid(), signal.SIGKILL)

    run_apply(settings, until_ts=last.hi, prepare=local_preparer(settings), on_batch=counting)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
