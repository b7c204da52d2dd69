"""Lives of a store, for test_store_crash: each is a process, which writes transactions, tells the
number of each one once it is acknowledged ("12") and what a live reader was given ("r<commit_ts>"),
and purges.

`python -m tests.pump_service.crashing_store` forks them, so that none needs a start of its own: a
line of its input is the arguments of `_live`, as JSON; the answer to it, once that life is over,
its exit code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from sluice.pump_service.store import Store, failpoints, segment
from tests.pump_service.storekit import BASE, OPTIONS, commit, prewrite

_PATIENCE_S = 60


def _live(data: str, after: int, failpoint: str, told: str) -> None:
    """Live on the store in `data`, with a reader from `after` on.

    What is to be told goes to the file `told`.
    """
    failpoints.configure(failpoint)
    segment._STEADY = 2
    telling = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    options = dataclasses.replace(
        OPTIONS, segment_limit=2000, save_interval_s=0.01, sync_interval_s=0.02
    )
    store = Store.open(data, options)
    slots = threading.Semaphore(4)

    def read() -> None:
        for entity in store.pull(after, threading.Event()):
            os.write(telling, b"r%d\n" % entity.commit_ts)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for i in range(200):
        start = BASE + i * (60_000 << 18)

        def done(error: BaseException | None, i: int = i) -> None:
            if error is None:
                os.write(telling, b"%d\n" % i)
            slots.release()

        slots.acquire()
        store.submit([prewrite(start, b"v" * 150), commit(start, start + 1)], done, here=i % 3 == 0)
        if i % 20 == 19:
            time.sleep(0.03)
    store.barrier(BASE + 200 * (60_000 << 18), 10)
    store.gc(BASE + 100 * (60_000 << 18))
    time.sleep(0.1)
    store.close()


def _begin(request: str) -> NoReturn:
    """In the process that was forked."""
    signal.alarm(_PATIENCE_S)
    try:
        _live(*json.loads(request))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _main() -> None:
    for request in sys.stdin:
        assert threading.active_count() == 1, (
            "others' locks would never be given back in a process that is forked"
        )
        pid = os.fork()
        if not pid:
            _begin(request)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
