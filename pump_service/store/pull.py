"""What a Drainer pulls: each committed transaction as one merged Binlog, and fake binlogs, following live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from pump_service.store import binlog_head
from pump_service.store.records import Entity
from pump_service.store.window import Transactions, WindowReader, groups

_ENTRIES = 2048
_BYTES = 8 << 20


def entities(reader: WindowReader, after: int, through: int) -> Iterator[Entity]:
    """Transactions and fake binlogs with commit_ts in (after, through], ascending.

    A transaction is its Commit with prewrite_value and ddl_* of its Prewrite; a fake comes as it was written.
    """
    for chunk in reader.transactions(after, through, _ENTRIES):
        yield from _chunk(reader, chunk)


def _chunk(reader: WindowReader, chunk: Transactions) -> Iterator[Entity]:
    fakes = {i: p for i, p in reader.payloads(chunk.fakes) if p is not None}
    waiting = sorted(((int(chunk.fakes.commits[i]), payload) for i, payload in fakes.items()), reverse=True)
    for begin, end in groups(chunk.prewrites.lengths, _BYTES, _ENTRIES):
        rows = np.arange(begin, end)
        commits = dict(reader.payloads(chunk.commits, rows))
        prewrites = dict(reader.payloads(chunk.prewrites, rows))
        for i in range(begin, end):
            commit, prewrite = commits[i], prewrites[i]
            commit_ts = int(chunk.commits.commits[i])
            while waiting and waiting[-1][0] < commit_ts:
                ts, payload = waiting.pop()
                yield Entity(payload, ts, ts)
            if commit is not None and prewrite is not None:
                yield Entity(binlog_head.merge(commit, prewrite), int(chunk.commits.starts[i]), commit_ts)
    while waiting:
        ts, payload = waiting.pop()
        yield Entity(payload, ts, ts)


def follow(
    reader: WindowReader,
    after: int,
    stop: threading.Event,
    wait_beyond: Callable[[int], int],
) -> Iterator[Entity]:
    """`entities` without end: `wait_beyond(ts)` waits a moment for max_commit_ts to pass ts and returns it."""
    while not stop.is_set():
        through = wait_beyond(after)
        if through <= after:
            continue
        for entity in entities(reader, after, through):
            yield entity
            if stop.is_set():
                return
        after = through
