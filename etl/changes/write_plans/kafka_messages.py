"""Encode transactions as messages for a topic, in the formats of `sluice.etl.changes.messages`.

A transaction step's payload is frames of whole messages behind the hashes that decide on their
partitions, in the order in which TiDB wrote the changes. `transactions` counts those that end in
the step; a transaction may begin in one before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.messages import (
    Dispatch,
    Encoder,
    MessageFormat,
    RowBatch,
    encoder_for,
    row_hashes,
    shown_columns,
    with_hashes,
)
from sluice.etl.changes.steps import MessageSchema, Step, TransactionDetail
from sluice.etl.changes.write_plans._row_images import changes_of, raw_image
from sluice.etl.changes.write_plans._transactions import STEP_BYTES, Places, merged_in_order
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.schema import Table
from sluice.tidb.table_name import TableName
from sluice.tidb.time_zone import find_zone


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Yield the change set's transaction steps, in order."""
    encoder = encoder_for(segment.message_format)
    built_ms = int(time.time() * 1000)
    pieces: list[tuple[Places, pa.LargeBinaryArray]] = []
    started = time.perf_counter()
    for changes in changes_of(segment, find_zone(encoder.time_zone)):
        decoded = time.perf_counter()
        timings.decode += decoded - started
        batch = RowBatch(
            changes.table,
            changes.kind,
            changes.old,
            changes.new,
            segment.column("commit_ts", changes.places),
            segment.column("start_ts", changes.places),
            built_ms,
        )
        name = TableName(changes.table.schema_name, changes.table.name)
        dispatch = segment.message_format.routing.dispatch_of(name)
        pieces.append((changes.places, _encoded(encoder, batch, dispatch)))
        started = time.perf_counter()
        timings.format += started - decoded
    if not pieces:
        return
    places, offsets, data = merged_in_order(pieces)
    timings.format += time.perf_counter() - started
    schemas = tuple(encoder.schemas)
    yield from _steps(segment.column("commit_ts", places), offsets, data, schemas)


def snapshot_rows(
    table: Table, rows: pa.RecordBatch, at_ts: int, options: MessageFormat
) -> tuple[list[MessageSchema], pa.LargeBinaryArray]:
    """Return the schemas and the frames of rows that were there at `at_ts` (TSO).

    `rows`: in the types of `sluice.tidb.rows.arrow_schema`, all columns that messages show. Raises
    ChangeError for an ENUM's or SET's value that is none of its elements.
    """
    encoder = encoder_for(options)
    zone = find_zone(encoder.time_zone)
    images = {c.name: raw_image(c, rows[c.name], zone) for c in shown_columns(table)}
    times = np.full(rows.num_rows, at_ts, np.int64)
    built_ms = int(time.time() * 1000)
    batch = RowBatch(table, INSERT, {}, images, times, times, built_ms, snapshot=True)
    name = TableName(table.schema_name, table.name)
    data = _encoded(encoder, batch, options.routing.dispatch_of(name))
    return encoder.schemas, data


def _encoded(encoder: Encoder, batch: RowBatch, dispatch: Dispatch) -> pa.LargeBinaryArray:
    """Return the frames of each change behind its hashes.

    An update that changes its hash is a delete and an insert: else no partition would have all of
    its key.
    """
    if not dispatch.by_values:
        nothing = np.zeros(len(batch), np.uint32)
        return with_hashes(encoder.rows(batch), nothing, nothing)
    old, new = row_hashes(batch, dispatch)
    moved = old != new
    if batch.kind != UPDATE or encoder.splits_key_changes or not moved.any():
        return with_hashes(encoder.rows(batch), old, new)
    places = np.flatnonzero(~moved), np.flatnonzero(moved)
    stay, move = (batch.take(some) for some in places)
    halves = join(*(encoder.rows(move.as_kind(kind)) for kind in (DELETE, INSERT)))
    order = np.argsort(np.concatenate(places), kind="stable")
    return with_hashes(
        pa.concat_arrays([encoder.rows(stay), halves]).take(pa.array(order)), old, new
    )


def _steps(
    commit_ts: Places,
    offsets: Places,
    data: memoryview,
    schemas: tuple[MessageSchema, ...] = (),
    step_bytes: int = STEP_BYTES,
) -> Iterator[Step]:
    """Yield the messages in steps of about `step_bytes`, cut between changes."""
    is_last = np.append(commit_ts[1:] != commit_ts[:-1], True)
    first = 0
    while first < len(commit_ts):
        end = int(np.searchsorted(offsets, offsets[first] + step_bytes, side="right")) - 1
        end = min(max(end, first + 1), len(commit_ts))
        yield Step(
            TransactionDetail(int(is_last[first:end].sum()), schemas=schemas),
            int(commit_ts[end - 1]),
            rows=end - first,
            payload=data[offsets[first] : offsets[end]],
        )
        first = end
