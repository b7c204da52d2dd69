"""Relocate row changes around DDL that moves rows between tables or removes partitions.

That is partitions dropped, truncated or exchanged, and tables (un)partitioned. TiDB changes
definitions in steps, and lets sessions be one schema version behind. So some changes behind such a
DDL, by their `schema_version`, were made by the definition before it. (In the relay log that is
the version of the definition by which TiDB wrote the row, where the binlog's is less exact:
`sluice.etl.landing.definitions_used`. Moves that landing hasn't asked TiKV about are of an older
Sluice.)

    DROP, TRUNCATE PARTITION   what such a change did to a partition that is gone went with it
    EXCHANGE PARTITION         what it did to the partition, it did to the table that the partition
                               is now, and the other way round
    (un)partitioning           the table goes on under another id

Some changes before it were made by the definition after it: a row that the dropped partition would
have held went to the one beside it, and stays (`surviving_changes`). Every image of a change is
looked at by itself: an update may be an insert in one table, a delete in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb.ddl_actions import MOVES_ROWS, Action
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.ddl_schema_versions import LONGEST_STATEMENT
from sluice.tidb.partitions import PartitionError, partition_ids, partition_of
from sluice.tidb.rows import (
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
)
from sluice.tidb.schema import Table

Row = dict[str, Any]
Images = tuple[Row | None, Row | None]


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The new places of changes that were made by the definition before a DDL."""

    version: int
    """The first schema version that goes by the new definition."""
    last_version: int
    job_id: int
    table: Table
    """The table as it was, with its partitions, if it had any."""
    partitions: Mapping[int, int | None] = field(default_factory=dict)
    """The table that a partition is now, None if it is gone, by the partition's id."""
    renumbered: Mapping[int, int] = field(default_factory=dict)
    """Table ids whose rows go on in another table, whole."""
    finished_ts: int = 0
    """TSO by which every TiDB knew of the DDL.

    A statement that began before may have been planned by the definition before, though its rows
    name another: they have the version that was known when the first of them was written.
    """
    ahead: frozenset[int] = frozenset()
    """Transactions (start_ts) before the DDL that wrote by the new definition.

    Their rows name an older one.
    """
    present: Counter[str] = field(default_factory=Counter)
    """Rows in truncated partitions since, counted on by `relocate`."""

    @property
    def counted_through(self) -> int:
        """Return the commit timestamp up to which statements that were planned before count.

        All of them are over then.
        """
        return self.finished_ts + LONGEST_STATEMENT if self.finished_ts else 0

    @property
    def drops(self) -> bool:
        """Return whether partitions are gone with their rows."""
        return None in self.partitions.values()


def move_of(past: FinishedRowMove) -> PartitionMove | None:
    """Return how a DDL moves rows; None if it moves none."""
    kind, after = past.type, past.effect.tables
    before = {i: table for i, table in past.before.items() if table is not None}
    if kind not in MOVES_ROWS or not before:
        return None
    versions = past.versions or (past.schema_version,)
    job_id = past.job_id
    finished_ts = past.finished_ts if len(versions) == 1 and not past.asked else 0
    partitioned = next(
        (t for i, t in before.items() if t.is_partitioned and after.get(i) is not None), None
    )
    if kind in (Action.PARTITION_TABLE, Action.REMOVE_PARTITIONING):
        old, new = (
            next((i for i in before if after.get(i) is None), None),
            next((i for i, t in after.items() if t is not None), None),
        )
        return (
            PartitionMove(versions[-1], versions[-1], job_id, before[old], {}, {old: new})
            if old is not None and new is not None
            else None
        )
    if partitioned is None:
        return None
    gone = partition_ids(partitioned).keys() - partition_ids(after[partitioned.id]).keys()  # type: ignore[arg-type]
    if kind == Action.EXCHANGE_PARTITION:
        ordinary = next(i for i in before if i != partitioned.id)
        return PartitionMove(
            versions[-1],
            versions[-1],
            job_id,
            partitioned,
            {i: i for i in gone},
            {ordinary: partitioned.id},
        )
    return (
        PartitionMove(
            versions[0],
            versions[-1],
            job_id,
            partitioned,
            dict.fromkeys(gone),
            finished_ts=finished_ts,
            ahead=frozenset(past.ahead),
        )
        if gone
        else None
    )


_PARTITION = "partition"
"""A column beside a part's own while changes are relocated: the id of the partition that the row of
an exchanged table lies in, 0 where the row's values tell.
"""


def relocate(changes: pa.Table, moves: Iterable[PartitionMove]) -> pa.Table:
    """Return `changes` (PART_SCHEMA) behind the DDL of `moves` (in order), as they read after it.

    Rows of a table that became a partition lie in it whatever their values are, and go on with it
    through later moves: exchanged and exchanged back they are the table's again.

    Raises PartitionError.
    """
    changes = changes.append_column(
        pa.field(_PARTITION, pa.int64()), pa.array(np.zeros(changes.num_rows, np.int64))
    )
    for move in moves:
        if not changes.num_rows:
            break
        changes = _with_partition_ids(changes, move)
        ids, versions = changes["table_id"].to_numpy(), changes["schema_version"].to_numpy()
        late = versions < move.version
        exchanged = {i for i in move.partitions.values() if i is not None}
        for old, new in move.renumbered.items():
            moved = late & (ids == old)
            changes = _with_ids(changes, "table_id", moved, new)
            if exchanged:
                changes = _with_ids(changes, _PARTITION, moved, old)
        near = changes["commit_ts"].to_numpy() <= move.counted_through
        own = (late | near) & (ids == move.table.id) & (changes[_PARTITION].to_numpy() == 0)
        if move.partitions and own.any():
            changes = _relocated_rows(changes, np.flatnonzero(own), move)
    return changes.drop_columns(_PARTITION)


def _with_partition_ids(changes: pa.Table, move: PartitionMove) -> pa.Table:
    """Return `changes` with those whose partition is known as they are after the move."""
    known = changes[_PARTITION].to_numpy()
    # REORGANIZE PARTITION has put rows of partitions that are gone where their values belong.
    reorganized = (
        (known > 0)
        & (changes["table_id"].to_numpy() == move.table.id)
        & ~np.isin(known, list(partition_ids(move.table)))
    )
    changes = _with_ids(changes, _PARTITION, reorganized, 0)
    for partition, table_id in move.partitions.items():
        inside = changes[_PARTITION].to_numpy() == partition
        if not inside.any():
            continue
        if table_id is None:
            changes = changes.filter(pa.array(~inside))
        else:
            changes = _with_ids(changes, "table_id", inside, table_id)
            changes = _with_ids(changes, _PARTITION, inside, 0)
    return changes


def surviving_changes(changes: Iterable[pa.Table], move: PartitionMove) -> pa.Table:
    """Return what changes before a DDL leave of rows in partitions that it drops.

    `changes`: given in order. Of those made by the new definition these are the ones about rows
    that the old one has in a dropped partition: after the DDL they are what is left of them.
    Raises PartitionError.
    """
    rows: list[Row] = []
    for piece in changes:
        is_new = piece["schema_version"].to_numpy() >= move.version
        if move.ahead:
            is_new |= np.isin(piece["start_ts"].to_numpy(), list(move.ahead))
        rows += _rows_of(
            piece.filter(pa.array((piece["table_id"].to_numpy() == move.table.id) & is_new))
        )
    found: list[Row] = []
    present: Counter[str] = Counter()
    for row, images in zip(rows, _images(move.table, rows), strict=True):
        inside = [_is_removed(move, image) for image in images]
        if _count(present, images, inside):
            found += _split_change(
                row, images, [move.table.id if goes else None for goes in inside], move.table
            )
    return pa.Table.from_pylist(found, PART_SCHEMA)


def _relocated_rows(changes: pa.Table, places: np.ndarray, move: PartitionMove) -> pa.Table:
    """Return `changes` with those at `places` as they are after the move."""
    rows = _rows_of(changes.take(pa.array(places)))
    pieces, done = [], 0
    for place, row, images in zip(places.tolist(), rows, _images(move.table, rows), strict=True):
        try:
            if not _is_late(row, images, move):
                continue
            targets = [_target(move, image) for image in images]
        except PartitionError as error:
            raise PartitionError(
                f"commit_ts {row['commit_ts']}: a change by schema version {row['schema_version']},"
                f" near the last change of its partitions: {error}.",
                hint=(
                    f"`sluice txn skip {row['commit_ts']}` leaves the transaction out; see to its"
                    " rows by hand"
                ),
            ) from error
        pieces += [
            changes.slice(done, place - done),
            pa.Table.from_pylist(_split_change(row, images, targets, move.table), changes.schema),
        ]
        done = place + 1
    return pa.concat_tables([*pieces, changes.slice(done)])


def _is_late(row: Row, images: Images, move: PartitionMove) -> bool:
    if row["schema_version"] < move.version:
        return True
    if row["commit_ts"] > move.counted_through:
        return False
    there = _count(move.present, images, [_is_removed(move, image) for image in images])
    return not there and row["start_ts"] <= move.finished_ts


def _target(move: PartitionMove, image: Row | None) -> int | None:
    partition = _partition(move, image)
    return (
        move.partitions[partition]
        if partition in move.partitions and partition is not None
        else move.table.id
    )


def _count(present: Counter[str], images: Images, inside: Sequence[bool]) -> bool:
    """Count the images that lie in partitions which were empty when counting began.

    False, and nothing is counted, if the old one isn't there: then the change is about a partition
    that is gone.
    """
    old, new = (
        repr(sorted(image.items())) if image is not None and goes else ""
        for image, goes in zip(images, inside, strict=True)
    )
    if old and not present[old]:
        return False
    present.subtract([old] if old else [])
    present.update([new] if new else [])
    return True


def _is_removed(move: PartitionMove, image: Row | None) -> bool:
    return image is not None and _partition(move, image) in move.partitions


def _partition(move: PartitionMove, image: Row | None) -> int | None:
    return None if image is None else partition_of(move.table, image)


def _split_change(
    row: Row, images: Images, targets: Sequence[int | None], table: Table
) -> list[Row]:
    """Return a change whose images belong to these tables (None: to none) as one for each."""
    there = [target for image, target in zip(images, targets, strict=True) if image is not None]
    if all(target == there[0] for target in there):
        return [] if there[0] is None else [{**row, "table_id": there[0]}]
    found = []
    for image, target, kind, encode in zip(
        images, targets, (DELETE, INSERT), (encode_delete, encode_insert), strict=True
    ):
        if image is not None and target is not None:
            found.append({**row, "table_id": target, "kind": kind, "row": encode(table, image)})
    return found


def _images(table: Table, rows: Sequence[Row]) -> list[Images]:
    """Return the old and the new image of each change."""
    images: list[Images] = [(None, None)] * len(rows)
    for kind in (INSERT, UPDATE, DELETE):
        places = [i for i, row in enumerate(rows) if row["kind"] == kind]
        if not places:
            continue
        encoded = pa.array([rows[i]["row"] for i in places], pa.large_binary())
        old = new = [None] * len(places)
        if kind == UPDATE:
            old, new = (batch.to_pylist() for batch in decode_updates(table, encoded))
        elif kind == INSERT:
            new = decode_inserts(table, encoded).to_pylist()
        else:
            old = decode_deletes(table, encoded).to_pylist()
        for i, pair in zip(places, zip(old, new, strict=True), strict=True):
            images[i] = pair
    return images


def _rows_of(changes: pa.Table) -> list[Row]:
    rows: list[Row] = changes.to_pylist()
    return rows


def _with_ids(changes: pa.Table, name: str, mask: np.ndarray, value: int) -> pa.Table:
    if not mask.any():
        return changes
    ids = np.where(mask, value, changes[name].to_numpy())
    at = changes.schema.get_field_index(name)
    return changes.set_column(at, changes.schema.field(at), pa.array(ids, pa.int64()))
