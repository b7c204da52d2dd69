"""Child of test_store_crash: writes transactions, prints the number of each one once it is acknowledged ("12") and what
a live reader was given ("r<commit_ts>"), purges.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time

from storekit import BASE, OPTIONS, commit, prewrite

from pump_service.store import Store


def main() -> None:
    options = dataclasses.replace(OPTIONS, segment_limit=2000, save_interval_s=0.01, sync_interval_s=0.02)
    store = Store.open(sys.argv[1], options)
    slots = threading.Semaphore(4)

    def read() -> None:
        for entity in store.pull(int(sys.argv[2]), threading.Event()):
            os.write(1, b"r%d\n" % entity.commit_ts)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for i in range(200):
        start = BASE + i * (60_000 << 18)

        def done(error: BaseException | None, i: int = i) -> None:
            if error is None:
                os.write(1, b"%d\n" % i)
            slots.release()

        slots.acquire()
        store.submit([prewrite(start, b"v" * 150), commit(start, start + 1)], done, here=i % 3 == 0)
        if i % 20 == 19:
            time.sleep(0.03)
    store.barrier(BASE + 200 * (60_000 << 18), 10)
    store.gc(BASE + 100 * (60_000 << 18))
    time.sleep(0.1)
    store.close()


main()
