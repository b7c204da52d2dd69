"""Write a snapshot of the downstream's rows at one checkpoint.

Sessions with consistent snapshots read them, this process writes. The sessions' snapshots live no
longer than this process, so a job that is killed begins again, at a later checkpoint.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sluice.etl.copy.snapshot_files import write_files
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader, KeyBounds
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, page_key
from sluice.relay.archive import SnapshotFile
from sluice.relay.storage import Storage

__all__ = ["ReadRange", "plan_ranges", "write_ranges"]

READ_RANGE_BYTES = 64 << 20
_RANGES_PER_SESSION = 4


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A table, or a range of one whose key is a number.

    The range is from the first (inside) to the second (outside). `bytes`: about how many the server
    has for it.
    """

    place: DownstreamTable
    bytes: int
    within: KeyBounds = (None, None)


def plan_ranges(
    snapshot: ConsistentReader, places: Sequence[tuple[DownstreamTable, int]]
) -> list[ReadRange]:
    """Plan what to read, the largest first. Raises DownstreamError."""
    found: list[ReadRange] = []
    for place, size in places:
        parts = min(size // READ_RANGE_BYTES, _RANGES_PER_SESSION * snapshot.sessions)
        key = page_key(place.table)
        if parts < 2 or len(key) != 1 or key[0].kind != "int":
            found.append(ReadRange(place, size))
            continue
        found += [
            ReadRange(place, size // parts, within)
            for within in pairwise(_range_bounds(snapshot, place, parts))
        ]
    return sorted(found, key=lambda stripe: -stripe.bytes)


def _range_bounds(
    snapshot: ConsistentReader, place: DownstreamTable, parts: int
) -> list[list[str] | None]:
    limits = snapshot.limits(0, place)
    if limits is None:
        return [None, None]
    low, high = limits
    inner = sorted({low + (high - low) * n // parts for n in range(1, parts)})
    return [None, *([str(key)] for key in inner), None]


def write_ranges(
    snapshot: ConsistentReader,
    stripes: Sequence[ReadRange],
    storage: Storage,
    folder: str,
    go_on: Callable[[], bool],
) -> Iterator[tuple[ReadRange, list[SnapshotFile]]]:
    """Write the stripes' rows into a folder of the archive, a thread a session.

    They come as they are done. None is begun once `go_on()` is false. Raises TableChanged,
    SnapshotError, DownstreamError, OSError.
    """
    waiting: queue.SimpleQueue[ReadRange] = queue.SimpleQueue()
    for stripe in stripes:
        waiting.put(stripe)
    found: queue.SimpleQueue[tuple[ReadRange, list[SnapshotFile]] | BaseException | None] = (
        queue.SimpleQueue()
    )
    stop = threading.Event()

    def work(number: int) -> None:
        try:
            while not stop.is_set() and go_on():
                try:
                    stripe = waiting.get_nowait()
                except queue.Empty:
                    break
                table = stripe.place.table
                rows = snapshot.rows(number, stripe.place, stripe.within)
                found.put((stripe, write_files(storage, f"{folder}/{table.id}", table, rows)))
            found.put(None)
        except BaseException as error:
            found.put(error)

    threads = [
        threading.Thread(target=work, args=(n,), name=f"snapshot-{n}", daemon=True)
        for n in range(snapshot.sessions)
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            each = found.get()
            if isinstance(each, BaseException):
                raise each
            if each is None:
                left -= 1
            else:
                yield each
    finally:
        stop.set()
        snapshot.close()  # ends the threads' waits for the server
        for thread in threads:
            thread.join()
