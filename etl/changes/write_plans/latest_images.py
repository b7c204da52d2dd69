"""Return the newest image of each row in a change set, by the key that finds rows downstream.

It is what is left of the row when all that came before doesn't count. A step `latest_images` a
table: the payload is an Arrow IPC stream of the table's stored columns and GONE, which is true
where the row isn't there in the end; of such a row the key alone counts. Steps of a later change
set come after those of an earlier one. A table without a key has a step without rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sluice.etl.changes.steps import LatestImagesDetail, Step
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.identity import identity, lookup_key_columns
from sluice.etl.changes.write_plans.net_effect import key_codes, net_effect
from sluice.etl.changes.write_plans.raw_changes import Images, RawChanges, decode
from sluice.etl.changes.write_plans.reduced_table import comparable_keys
from sluice.relay import DELETE, INSERT
from sluice.tidb.schema import Table

DELETED_MARKER = "gone "
"""No name for a column in TiDB, which allows none that ends with a blank."""


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Yield one step for each table."""
    for table, places in segment.tables:
        started = time.perf_counter()
        changes = RawChanges(
            segment.column("kind", places),
            segment.column("commit_ts", places),
            segment.rows_of(places),
        )
        rows = latest_images(table, changes)
        timings.decode += time.perf_counter() - started
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        detail = LatestImagesDetail(table.id)
        yield Step(
            detail,
            segment.through,
            table.schema_name,
            table.name,
            rows.num_rows,
            0,
            sink.getvalue(),
        )


def latest_images(table: Table, changes: RawChanges) -> pa.Table:
    """Return the last image of each key, and GONE.

    Raises the row codec's errors.

    Rows may exchange their keys, in one transaction too, so a key's own last image doesn't show
    whether it is taken in the end. What each row is in the end, by its identity, does: every other
    key that was touched is free.
    """
    key = [column.name for column in lookup_key_columns(table)]
    count = len(changes.kinds) if key else 0
    kinds = changes.kinds[:count]
    old, new = decode(table, kinds, changes.rows[:count])
    before, after = len(np.flatnonzero(kinds != INSERT)), len(np.flatnonzero(kinds != DELETE))
    free = {
        n: pa.concat_arrays([old[n].cast(a.type), a])
        if n in key
        else pa.nulls(before + after, a.type)
        for n, a in new.items()
    }
    taken = pa.array(_surviving_places(table, kinds, old, new))
    parts = [
        pa.table(
            {column.name: free[column.name] for column in table.stored_columns}
            | {DELETED_MARKER: pa.array(np.ones(before + after, bool))}
        ),
        pa.table(
            {column.name: new[column.name].take(taken) for column in table.stored_columns}
            | {DELETED_MARKER: pa.array(np.zeros(len(taken), bool))}
        ),
    ]
    return latest_of_each_key(table, pa.concat_tables(parts).combine_chunks())


def _surviving_places(table: Table, kinds: np.ndarray, old: Images, new: Images) -> np.ndarray:
    """Return the places in `new` of the rows that are there in the end."""
    names = identity(table)
    if not len(kinds) or not names:
        return np.zeros(0, np.int64)
    columns = {column.name: column for column in table.stored_columns}
    codes = key_codes(
        *(
            [comparable_keys(images[name], columns.get(name)) for name in names]
            for images in (old, new)
        )
    )
    effect = net_effect(kinds, *codes, partial=True)
    return np.concatenate((effect.inserted, effect.updated_new))


def latest_of_each_key(table: Table, images: pa.Table) -> pa.Table:
    """Return the last image of each key, of images in the order of `latest_images`."""
    key = lookup_key_columns(table)
    if not images.num_rows or not key:
        return images.slice(0, 0)
    codes = key_codes_of(table, [images])[0]
    backwards = codes[::-1]
    _, first = np.unique(backwards, return_index=True)
    return images.take(pa.array(np.sort(len(codes) - 1 - first)))


def key_codes_of(table: Table, parts: list[pa.Table]) -> list[np.ndarray]:
    """Return codes of several tables' keys, equal for equal keys within this call."""
    key = lookup_key_columns(table)
    whole = pa.concat_tables(parts)
    arrays = [comparable_keys(whole[column.name].combine_chunks(), column) for column in key]
    codes, _ = key_codes(arrays, [array.slice(0, 0) for array in arrays])
    ends = np.cumsum([part.num_rows for part in parts])
    return [codes[end - part.num_rows : end] for part, end in zip(parts, ends, strict=True)]
