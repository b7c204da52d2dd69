"""Find by the mark table's rows which transactions pipelines wrote, and where they came from.

What came from the cluster that it would go to is left out. In a ring of clusters the rest keeps its
mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.mark_table import CHANNEL_COLUMN, MARK_NAME, is_mark_table
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.steps import ChangeError
from sluice.etl.changes.write_plans.raw_changes import RawChanges, decode
from sluice.relay import DELETE, INSERT
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class MarkedChanges:
    """Which changes of a window are left out, of how many transactions, and others' origins."""

    left_out: np.ndarray
    """Bools, one a change: those of marked transactions, and all of the mark table."""
    start_ts: np.ndarray
    """The start timestamps, ascending (int64), of transactions that came from downstream."""
    channels: np.ndarray
    """The channel of each change's transaction (int64), of those that aren't left out."""


def find_marked(
    changes: pa.Table, schema: RecordedSchema, channels: Channels
) -> MarkedChanges | None:
    """Return which changes (PART_SCHEMA) of a window came from downstream, and others' channels.

    None without a change of the mark table. Raises ChangeError for rows with a mark that is none of
    `channels`, and the row codec's errors.
    """
    tables = _mark_tables(schema)
    if not tables or not changes.num_rows:
        return None
    table_ids = changes["table_id"].to_numpy()
    is_mark = np.isin(table_ids, list(tables))
    if not is_mark.any():
        return None
    starts = changes["start_ts"].to_numpy()
    marks = np.unique(np.concatenate(list(_marks(changes, table_ids, tables))), axis=0)
    returned = marks[marks[:, 1] == channels.returned, 0]
    left_out = is_mark | np.isin(starts, returned)
    others = marks[~np.isin(marks[:, 0], returned)]
    _refuse(changes, left_out, others, channels)
    return MarkedChanges(left_out, returned, _channel_of_each(starts, others, channels.own))


def _marks(
    changes: pa.Table, table_ids: np.ndarray, tables: Mapping[int, Table]
) -> Iterable[np.ndarray]:
    """Yield pairs of a transaction's start_ts and the channel of a mark in it (int64)."""
    for table_id, table in tables.items():
        marked = changes.take(pa.array(np.flatnonzero(table_ids == table_id)))
        starts = marked["start_ts"].to_numpy()
        for channels, places in _channels(table, marked):
            yield np.stack((starts[places], channels), axis=1)
    yield np.empty((0, 2), np.int64)


def _mark_tables(schema: RecordedSchema) -> Mapping[int, Table]:
    """Return the definitions of the mark table that a window has, by id."""
    known: Iterable[tuple[int, Table | None]] = (
        *schema.tables.items(),
        *((i, table) for ddl in schema.ddls for i, table in ddl.effect.tables.items()),
    )
    return {
        i: table
        for i, table in known
        if table is not None and is_mark_table(table.schema_name, table.name)
    }


def _channels(table: Table, changes: pa.Table) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield channels of rows of the mark table, and the places of their changes."""
    raw = RawChanges.from_table(changes)
    old, new = decode(table, raw.kinds, raw.rows)
    for images, places in (
        (old, np.flatnonzero(raw.kinds != INSERT)),
        (new, np.flatnonzero(raw.kinds != DELETE)),
    ):
        if CHANNEL_COLUMN in images and len(places):
            yield images[CHANNEL_COLUMN].to_numpy(zero_copy_only=False).astype(np.int64), places


def _channel_of_each(starts: np.ndarray, marks: np.ndarray, own: int) -> np.ndarray:
    """Return the channel of each change's transaction; `marks` are pairs, by ascending start_ts."""
    found = np.full(len(starts), own, np.int64)
    if len(marks):
        places = np.minimum(np.searchsorted(marks[:, 0], starts), len(marks) - 1)
        is_marked = marks[places, 0] == starts
        found[is_marked] = marks[places[is_marked], 1]
    return found


def _refuse(changes: pa.Table, left_out: np.ndarray, marks: np.ndarray, channels: Channels) -> None:
    """Raise ChangeError if rows that aren't left out have a mark that they can't be passed on with.

    A transaction of marks alone has no such rows.
    """
    starts = changes["start_ts"].to_numpy()
    is_known = np.isin(marks[:, 1], list(channels.passed_on))
    foreign = marks[~is_known]
    marked, counts = np.unique(marks[:, 0], return_counts=True)
    refused = np.concatenate((foreign[:, 0], marked[counts > 1]))
    wrong = np.flatnonzero(~left_out & np.isin(starts, refused))
    if not len(wrong):
        return
    place = int(wrong[0])
    found = marks[marks[:, 0] == starts[place], 1].tolist()
    known = {*channels.passed_on}
    worst = next((each for each in found if each not in known), found[0])
    text = f"the transaction at commit_ts {changes['commit_ts'][place].as_py()} has the"
    if not channels.is_ring:
        raise ChangeError(
            f"{text} mark of channel {worst} in {MARK_NAME}, and this pipeline's [downstream]"
            f" channel-id is {channels.own}: it was replicated into this cluster, and might come"
            " back again and again",
            hint=(
                "give both directions of a pair the same channel-id; for rings of clusters, and"
                " chains, name their channels by [downstream] ring"
            ),
        )
    ring = ", ".join(map(str, sorted({channels.own, channels.returned, *known})))
    if len(found) > 1 and worst in known:
        raise ChangeError(
            f"{text} marks of channels {', '.join(map(str, found))} in {MARK_NAME}: no pipeline"
            " writes several, so where its rows came from isn't known",
            hint="find what else writes to the mark table upstream, and end it",
        )
    if worst == channels.own:
        raise ChangeError(
            f"{text} mark of channel {worst} in {MARK_NAME}, which is the upstream's own: it has"
            " been around the ring, and was written again where it came from",
            hint=(
                "give the pipeline that writes to this cluster the same [downstream] ring, and the"
                " channel-id of the cluster before this one; then compare the clusters"
            ),
        )
    raise ChangeError(
        f"{text} mark of channel {worst} in {MARK_NAME}, and [downstream] ring has only channels"
        f" {ring}: it came from a cluster that isn't in the ring",
        hint="name the channels of all clusters in ring, in the settings of each pipeline",
    )
