"""Transactions as records of the binlogfile format, in transaction steps.

A step's payload is whole records (`sluice.etl.changes.formats.binlog_file`), or a piece of one that
is too large for a step. Steps are in order of commit_ts; `rows` and `commit_ts` are those of the
records that end in the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.etl.changes.formats.binlog_file import FOOTER, HEADER, MAGIC, MAX_MESSAGE_BYTES
from sluice.etl.changes.formats.sql_columns import data_of
from sluice.etl.changes.steps import ChangeError, Step, TransactionDetail
from sluice.etl.changes.write_plans._row_images import KindChanges, changes_of
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.time_zone import find_zone

STEP_BYTES = 4 * 2**20
_TAG_DML = b"\x1a"

Places = npt.NDArray[np.int64]
Events = Callable[[KindChanges], pa.LargeBinaryArray]
"""Each of the changes as a part of a transaction's message."""
Transaction = tuple[int, int, list[bytes | memoryview]]
"""A transaction's commit_ts, row changes, and DMLData in pieces."""
Transactions = Callable[[ChangeSet, Places, Places, memoryview], Iterator[Transaction]]
"""Makes transactions, ascending, of what `merged_in_order` gave."""


def merged_in_order(
    pieces: list[tuple[Places, pa.LargeBinaryArray]],
) -> tuple[Places, Places, memoryview]:
    """Merge arrays whose values belong to places into (places, offsets, data), in their order."""
    places = np.concatenate([p for p, _ in pieces])
    order = np.argsort(places, kind="stable")
    offsets, data = data_of(pa.concat_arrays([array for _, array in pieces]).take(pa.array(order)))
    return places[order], offsets, memoryview(data.data)


def message_head(commit_ts: int, dml_bytes: int) -> bytes:
    """Return the first bytes of a transaction's message, through the length of its DMLData.

    They are the same in both formats.
    """
    return b"\x08\x00\x10" + encode_uvarint(commit_ts) + _TAG_DML + encode_uvarint(dml_bytes)


def binlog_steps(
    segment: ChangeSet, timings: StageTimings, events: Events, transactions: Transactions
) -> Iterator[Step]:
    """Yield the change set's transaction steps, in order.

    Each change is as `events` encodes it, put together by `transactions`. What decoding and
    formatting take is added to `timings`.
    """
    started = time.perf_counter()
    pieces = []
    for changes in changes_of(segment, find_zone(segment.time_zone)):
        decoded = time.perf_counter()
        timings.decode += decoded - started
        pieces.append((changes.places, events(changes)))
        started = time.perf_counter()
        timings.format += started - decoded
    if not pieces:
        return
    for step in transaction_steps(transactions(segment, *merged_in_order(pieces))):
        timings.format += time.perf_counter() - started
        yield step
        started = time.perf_counter()


def transaction_steps(
    transactions: Iterator[Transaction], step_bytes: int = STEP_BYTES
) -> Iterator[Step]:
    """Yield steps of transactions, ascending. Raises ChangeError for one no reader could take."""
    waiting = bytearray()
    count = rows = last = 0
    for commit_ts, changes, dml in transactions:
        size = sum(len(piece) for piece in dml)
        start = message_head(commit_ts, size)
        if len(start) + size > MAX_MESSAGE_BYTES:
            raise ChangeError(
                f"the transaction at commit_ts {commit_ts} is {size} bytes as one message, more"
                f" than the {MAX_MESSAGE_BYTES} that protobuf readers take",
                hint=f"leave it out, `sluice txn skip {commit_ts}`, and copy its rows",
            )
        if waiting and len(waiting) + size > step_bytes:
            yield _step(last, waiting, rows, count)
            waiting, count, rows = bytearray(), 0, 0
        crc = google_crc32c.value(start)
        waiting += HEADER.pack(MAGIC, len(start) + size)
        waiting += start
        for piece in dml:
            crc = google_crc32c.extend(crc, bytes(piece))
            for at in range(0, len(piece), step_bytes):
                if len(waiting) >= step_bytes:
                    yield _step(commit_ts, waiting, 0, 0, more=True)
                    waiting = bytearray()
                waiting += piece[at : at + step_bytes]
        waiting += FOOTER.pack(crc)
        count, rows, last = count + 1, rows + changes, commit_ts
        if size > step_bytes:
            yield _step(last, waiting, rows, count)
            waiting, count, rows = bytearray(), 0, 0
    if waiting:
        yield _step(last, waiting, rows, count)


def _step(commit_ts: int, payload: bytearray, rows: int, count: int, *, more: bool = False) -> Step:
    return Step(TransactionDetail(count, more), commit_ts, rows=rows, payload=payload)
