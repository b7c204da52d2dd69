"""Find the transactions that the pipeline of the other direction wrote, by the mark table's rows.

They came from the cluster that they would go to, so they are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.mark_table import CHANNEL_COLUMN, MARK_NAME, is_mark_table
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.steps import ChangeError
from sluice.etl.changes.write_plans.raw_changes import RawChanges, decode
from sluice.relay import DELETE, INSERT
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class MarkedChanges:
    """Which changes of a window are left out, and of how many transactions."""

    left_out: np.ndarray
    """Bools, one a change: those of marked transactions, and all of the mark table."""
    start_ts: np.ndarray
    """The marked transactions' start timestamps, ascending (int64)."""


def find_marked(changes: pa.Table, schema: RecordedSchema, channel: int) -> MarkedChanges | None:
    """Return which changes (PART_SCHEMA) of a window have the mark of `channel`.

    None without a change of the mark table. Raises ChangeError for rows that have another
    channel's mark, and the row codec's errors.
    """
    tables = _mark_tables(schema)
    if not tables or not changes.num_rows:
        return None
    table_ids = changes["table_id"].to_numpy()
    is_mark = np.isin(table_ids, list(tables))
    if not is_mark.any():
        return None
    starts = changes["start_ts"].to_numpy()
    own: list[np.ndarray] = []
    foreign: dict[int, int] = {}
    for table_id, table in tables.items():
        places = np.flatnonzero(table_ids == table_id)
        for channels, at in _channels(table, changes.take(pa.array(places))):
            own.append(starts[places[at[channels == channel]]])
            others = channels != channel
            foreign |= zip(
                starts[places[at[others]]].tolist(), channels[others].tolist(), strict=True
            )
    marked = np.unique(np.concatenate(own))
    left_out = is_mark | np.isin(starts, marked)
    _refuse_foreign(changes, left_out, foreign, channel)
    return MarkedChanges(left_out, marked)


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


def _refuse_foreign(
    changes: pa.Table, left_out: np.ndarray, foreign: Mapping[int, int], channel: int
) -> None:
    """Raise ChangeError if rows that aren't left out have another channel's mark."""
    if not foreign:
        return
    starts = changes["start_ts"].to_numpy()
    wrong = np.flatnonzero(~left_out & np.isin(starts, list(foreign)))
    if len(wrong):
        place = int(wrong[0])
        commit_ts = changes["commit_ts"][place].as_py()
        raise ChangeError(
            f"the transaction at commit_ts {commit_ts} has the mark of channel"
            f" {foreign[int(starts[place])]} in {MARK_NAME}, and this pipeline's [downstream]"
            f" channel-id is {channel}: it was replicated into this cluster, and might come back"
            " again and again",
            hint=(
                "give both directions of a pair the same channel-id; rings of clusters, and chains,"
                " aren't replicated"
            ),
        )
