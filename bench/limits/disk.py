"""The disk under a folder: a record appended and synced, and many with one sync.

`append_sync_*_ms` is one record of 128 bytes a sync. `group_commit_64x128_records_per_s` has 64
records of 128 bytes a sync; it is named as the case of `sluice bench pump` is, since no pump
answers 64 callers faster that makes durable what each of them sent.
`group_commit_most_128_records_per_s` is with whatever number a sync does best.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sluice.bench.limits import Figures, Round

_CASES = ((16, 128), (64, 128), (256, 128), (64, 1024))
_MOST_BYTES = (2**16, 2**18, 2**20, 2**22)
_FILE_BYTES = 2**28
"""Size of a file before another one is begun."""


@contextmanager
def disk(folder: Path) -> Iterator[Round]:
    """Measure files in `folder`, which must exist."""
    path = folder / "appended"

    def take(seconds: float) -> Figures:
        waits = _synced(path, 128, seconds)
        p50, p99 = np.percentile(waits, [50, 99]) * 1000
        found = {"append_sync_p50_ms": float(p50), "append_sync_p99_ms": float(p99)}
        found["group_commit_1x128_records_per_s"] = 1 / float(np.mean(waits))
        for records, size in _CASES:
            waits = _synced(path, records * size, seconds)
            found[f"group_commit_{records}x{size}_records_per_s"] = records / float(np.mean(waits))
        for size in (128, 1024):
            best = max(
                _bytes_per_s(path, length, seconds / len(_MOST_BYTES)) for length in _MOST_BYTES
            )
            found[f"group_commit_most_{size}_records_per_s"] = best / size
        return found

    try:
        yield take
    finally:
        path.unlink(missing_ok=True)


def _bytes_per_s(path: Path, length: int, seconds: float) -> float:
    return length / float(np.mean(_synced(path, length, seconds)))


def _synced(path: Path, length: int, seconds: float) -> list[float]:
    """Append `length` bytes at a time to a new file, and sync each time.

    Returns how long each took, in seconds.
    """
    piece = os.urandom(length)
    waits: list[float] = []
    spent = 0.0
    while spent < seconds or not waits:
        with path.open("wb", buffering=0) as file:
            os.fsync(file.fileno())
            while file.tell() < _FILE_BYTES and (spent < seconds or not waits):
                began = time.perf_counter()
                file.write(piece)
                os.fdatasync(file.fileno())
                waits.append(time.perf_counter() - began)
                spent += waits[-1]
    return waits
