"""Measure what preparing alone costs for traffic of several shapes: CPU time a row change.

Rows are read, decoded, reduced and written as SQL, without a database and without Spark.

    python -m sluice.bench.prepare_shapes many live wide

The names are of `sluice.bench.shapes`; all without any. Each figure is the least of some rounds
over the same relay log, in one process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.bench.apply_shapes import landed
from sluice.bench.shape_parts import history
from sluice.bench.shapes import SHAPES
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.relay import RelayLog, WindowRecord

_ROUNDS = 5


def main(names: list[str]) -> None:
    """Print a line for each shape."""
    for name in names or list(SHAPES):
        with tempfile.TemporaryDirectory(prefix="sluice-prepare-") as folder:
            shape = SHAPES[name]()
            relay, filled_ts = landed(history(shape), Path(folder).as_uri(), shape.window)
            batches = list(_batches(relay, filled_ts, shape.batch))
            changes = sum(window.changes for batch in batches for window in batch)
            spent = min(_round(Path(folder).as_uri(), batches) for _ in range(_ROUNDS))
            sys.stdout.write(
                f"{name:14} {spent * 1e6 / changes:8.2f} us a row change, {changes} in"
                f" {len(batches)}\n"
            )
            sys.stdout.flush()


def _batches(relay: RelayLog, after_ts: int, most: int) -> Iterator[list[WindowRecord]]:
    batch: list[WindowRecord] = []
    for window in relay.windows(after_ts):
        if batch and sum(each.changes for each in batch) + window.changes > most:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _round(url: str, batches: list[list[WindowRecord]]) -> float:
    documents = [BatchPayload.from_windows(batch) for batch in batches]
    began = time.process_time()
    for document in documents:
        for _ in prepare(url, document, PrepareOptions()):
            pass
    return time.process_time() - began


if __name__ == "__main__":
    main(sys.argv[1:])
