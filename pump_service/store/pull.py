"""What a Drainer pulls: each committed transaction as one merged Binlog, and fake binlogs."""

from __future__ import annotations

from collections.abc import Iterator

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
    for chunk in reader.transactions(after, through, _ENTRIES, keep=False):
        yield from _chunk(reader, chunk)


def _chunk(reader: WindowReader, chunk: Transactions) -> Iterator[Entity]:
    payloads = reader.payloads(chunk.fakes)
    waiting = [(ts, p) for ts, p in zip(chunk.fakes.commits.tolist(), payloads, strict=True) if p is not None]
    waiting.reverse()
    for begin, end in groups(chunk.prewrites.lengths, _BYTES, _ENTRIES):
        rows = np.arange(begin, end)
        columns = (
            reader.payloads(chunk.commits, rows),
            reader.payloads(chunk.prewrites, rows),
            chunk.commits.starts[rows].tolist(),
            chunk.commits.commits[rows].tolist(),
        )
        for commit, prewrite, start_ts, commit_ts in zip(*columns, strict=True):
            while waiting and waiting[-1][0] < commit_ts:
                ts, payload = waiting.pop()
                yield Entity(payload, ts, ts)
            if commit is not None and prewrite is not None:
                yield Entity(binlog_head.merge(commit, prewrite), start_ts, commit_ts)
    while waiting:
        ts, payload = waiting.pop()
        yield Entity(payload, ts, ts)
