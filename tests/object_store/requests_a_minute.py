"""How many requests to an object store a pipeline makes in a minute, by what stores charge for.

    .venv/bin/python -m tests.object_store.requests_a_minute [--seconds 20] [--every-ms 1000]
        [--idle]

What landing and applying ask of the relay log runs as it does in their loops, against an
S3-protocol server: the same looks at orders, windows, parts, claims, decisions and appointments, at
the same intervals; Spark, pumps and the downstream are left away, as they ask nothing of the store.
`--idle`: only empty windows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from sluice.etl.apply._batch import WindowBatch, check_not_paused, overrides_for
from sluice.etl.apply._window_selector import WindowSelector
from sluice.etl.landing._control import LandingControl
from sluice.etl.settings import Apply
from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord
from sluice.relay.consumers import Consumers
from sluice.relay.measures import LAND, CounterRecorder, CounterStore
from sluice.tidb import tso
from tests.object_store.s3_server import CREDENTIALS, started_s3

_WARM_UP_S = 13.0
"""Then what is remembered is, also where lists may lag."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every-ms", type=int, default=1_000, help="from one window to the next")
    parser.add_argument("--idle", action="store_true")
    asked = parser.parse_args()
    os.environ |= CREDENTIALS
    with tempfile.TemporaryDirectory() as folder, started_s3(Path(folder)) as server:
        relay = RelayLog.open(server.url())
        # As with the stores whose prices these are: their lists don't lag.
        relay.storage.lists_may_lag = False  # type: ignore[misc]
        stop = threading.Event()
        threads = [
            threading.Thread(target=_land, args=(relay, stop, asked.every_ms, asked.idle)),
            threading.Thread(target=_apply, args=(server.url(), stop)),
        ]
        for thread in threads:
            thread.start()
        time.sleep(_WARM_UP_S)
        server.counted()
        time.sleep(asked.seconds)
        counted = server.counted()
        stop.set()
        for thread in threads:
            thread.join()
    a_minute = {name: round(count * 60 / asked.seconds) for name, count in sorted(counted.items())}
    writes = sum(a_minute.get(name, 0) for name in ("PUT", "LIST"))
    reads = sum(a_minute.get(name, 0) for name in ("GET", "HEAD"))
    dollars = 1_440 * (writes * 5.0 + reads * 0.4) / 1e6
    print(f"a minute: {a_minute}; S3 and GCS {dollars:.2f} $ a day")


def _land(relay: RelayLog, stop: threading.Event, every_ms: int, idle: bool) -> None:
    orders, claim = LandingControl(relay, frozenset()), relay.claim("land")
    measured = CounterRecorder(CounterStore(relay), LAND)
    lo, number, due = tso.span(int(time.time() * 1000)), 0, time.monotonic()
    while not stop.is_set():
        orders.is_paused()
        orders.needs_window_now(lo, lo)
        orders.skips(lo)
        if time.monotonic() >= due:
            due += every_ms / 1000
            number += 1
            hi = max(lo + 2, tso.span(int(time.time() * 1000)))
            part = None if idle else relay.write_part(lo, hi, f"t{number}", 0, [_changes(lo + 1)])
            claim.check()
            count = 0 if part is None else part.rows
            relay.commit(
                WindowRecord(
                    lo, hi, 1, f"t{number}", 0, count, count, 1, () if part is None else (part,)
                )
            )
            measured.count({"changes": count})
            measured.at(hi)
            lo = hi
        stop.wait(0.02)
    measured.close()


def _changes(commit_ts: int) -> pa.RecordBatch:
    columns = [[commit_ts], [commit_ts - 1], [0], [7], [1], [0], [b"row"]]
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, PART_SCHEMA, strict=True)],
        schema=PART_SCHEMA,
    )


def _apply(url: str, stop: threading.Event) -> None:
    relay = RelayLog.open(url)
    while (first := relay.first()) is None:
        if stop.wait(0.02):
            return
    measured = CounterRecorder(CounterStore(relay), "apply-x")
    following = WindowSelector(relay, Apply(), None, None, stop)
    position, noted = first.lo, 0.0
    while not stop.is_set():
        windows, hi = following.next_batch(position)
        if not windows:
            break
        batch = WindowBatch(
            windows,
            position,
            hi,
            tables_under_repair=following.pending_chunks.tables_under_repair,
            _queue=None,
            _relay=relay,
        )
        overrides_for(relay, batch)
        relay.read(windows)
        check_not_paused(relay, hi)
        overrides_for(relay, batch)
        measured.count({"changes": 1})
        measured.at(hi)
        if time.monotonic() - noted > 300:
            noted = time.monotonic()
            Consumers(relay).note("apply-x", hi, "bench")
        position = hi
    measured.close()


if __name__ == "__main__":
    main()
