"""Decide by which of a table's definitions a transaction changed its rows, from TiKV's writes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS, Action
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.partitions import PartitionError, partition_ids, partition_of
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table

if TYPE_CHECKING:
    from sluice.tidb.tikv import Mvcc

_Partitions = frozenset[int]
OwnWrites = Mapping[tuple[int, bytes], set[int]]
"""Tables for exchanged partitions that the transaction wrote to itself, by start_ts and handle."""
Image = tuple[dict[str, Any], bytes | None]
"""Values by column name, and the handle."""
Change = tuple[int, dict[str, Any], list[Image]]
"""A row's place in the part, the row there, and its images."""


@dataclass(frozen=True, slots=True)
class PartitionStep:
    """A DDL that moves rows between or out of partitions of one table."""

    move: FinishedRowMove
    table_id: int
    commit_ts: int
    """Commit ts of its binlog; 0: before all rows in question."""

    @property
    def first_version(self) -> int:
        return (self.move.versions or (self.move.schema_version,))[0]

    @property
    def last_version(self) -> int:
        return self.move.schema_version

    @property
    def new_version(self) -> int:
        """Return the first schema version with the definition that the DDL leaves behind."""
        return self.first_version if self.move.type in REMOVES_PARTITIONS else self.last_version

    @property
    def has_stages(self) -> bool:
        """Return whether transactions may use the new definition before the binlog comes."""
        return self.new_version < self.last_version

    @property
    def before(self) -> Table:
        table = self.move.before[self.table_id]
        assert table is not None
        return table

    @property
    def after(self) -> Table:
        table = self.move.effect.tables[self.table_id]
        assert table is not None
        return table

    def is_in_doubt(self, change: Mapping[str, Any]) -> bool:
        """Return whether a change may have been made by either of the two definitions.

        A transaction that names the new version and began before the job was over may have been
        planned before it.
        """
        if change["commit_ts"] < self.move.began_ts or (
            change["commit_ts"] < self.commit_ts and not self.has_stages
        ):
            return False
        return bool(
            change["schema_version"] < self.new_version
            or change["start_ts"] <= self.move.finished_ts
        )


def steps_of(moves: Iterable[tuple[FinishedRowMove, int]]) -> dict[int, list[PartitionStep]]:
    """Return by table id the DDL of `moves` that changes its partitions.

    `moves`: each with the commit ts of its binlog.
    """
    found: dict[int, list[PartitionStep]] = defaultdict(list)
    for move, commit_ts in sorted(moves, key=lambda pair: pair[0].schema_version):
        if move.type not in REMOVES_PARTITIONS | {Action.EXCHANGE_PARTITION}:
            continue
        for table_id, table in move.before.items():
            if (
                table is not None
                and table.is_partitioned
                and move.effect.tables.get(table_id) is not None
            ):
                found[table_id].append(PartitionStep(move, table_id, commit_ts))
    return found


class DefinitionChain:
    """A table's definitions in order: the one before and the one after each step."""

    def __init__(
        self, steps: Sequence[PartitionStep], others: Sequence[tuple[int, Table]] = ()
    ) -> None:
        """Create the definition chain.

        `others`: definitions by DDL that is no step, each with its schema version, in order.
        """
        self.steps = steps
        self.tables: list[Table] = []
        self.before: list[int] = []
        self.after: list[int] = []
        """Place in `tables` of the definition after each step; `before`: of the one before it."""
        left = [(version, t) for version, t in others if version > steps[0].last_version]
        for step in steps:
            while left and left[0][0] < step.first_version:
                self.tables.append(left.pop(0)[1])
            if (
                not self.tables
                or partition_ids(self.tables[-1]).keys() != partition_ids(step.before).keys()
            ):
                self.tables.append(step.before)
            self.before.append(len(self.tables) - 1)
            left = [(version, t) for version, t in left if version > step.last_version]
            self.tables.append(step.after)
            self.after.append(len(self.tables) - 1)
        self.tables += [t for _, t in left]

    def allowed(self, row: Mapping[str, Any]) -> range:
        """Return the places of the definitions by which a change may have been made."""
        first, last = 0, len(self.tables) - 1
        for step, before, after in zip(self.steps, self.before, self.after, strict=True):
            if step.is_in_doubt(row):
                continue
            is_behind = row["commit_ts"] > step.commit_ts and row["commit_ts"] >= step.move.began_ts
            if is_behind or row["schema_version"] >= step.new_version:
                first = max(first, after)
            else:
                last = min(last, before)
        return range(first, last + 1)

    def version(self, used: int, named: int) -> int:
        """Return the schema version to record for a change by the definition at `used`.

        `named`: the version in its binlog.
        """
        for step, after in zip(self.steps, self.after, strict=True):
            if after <= used:
                named = max(named, step.last_version)
        for step, after in zip(self.steps, self.after, strict=True):
            if used < after:
                named = min(named, step.new_version - 1)
        return named


@dataclass(slots=True)
class UndecidedChanges:
    """The changes of one transaction in a table, made by one of several definitions."""

    chain: DefinitionChain
    allowed: range
    row: Mapping[str, Any]
    """One of the changes."""
    places: Sequence[int]
    written: dict[bytes, list[tuple[_Partitions, ...]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Partitions the row may be in by each allowed definition, by handle and image."""
    kinds: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    beside: OwnWrites = field(default_factory=dict)
    has_handles: bool = True

    @classmethod
    def from_changes(
        cls, chain: DefinitionChain, changes: Sequence[Change], beside: OwnWrites
    ) -> UndecidedChanges | None:
        """Return None if all allowed definitions put the rows into the same partitions."""
        row = changes[0][1]
        found = cls(
            chain, chain.allowed(row), row, [place for place, _, _ in changes], beside=beside
        )
        is_open = False
        for _, change, images in changes:
            for (image, handle), kind in zip(images, _image_kinds(change["kind"]), strict=True):
                lies = tuple(_partitions(chain.tables[i], image) for i in found.allowed)
                is_open |= len(set(lies)) > 1
                if handle is None:
                    found.has_handles = False
                else:
                    found.written[handle].append(lies)
                    found.kinds[handle].append(kind)
        return found if is_open else None

    def keys_to_read(self) -> Iterator[bytes]:
        """Yield the rows' keys by each allowed definition."""
        for handle, images in self.written.items():
            for partition in self._candidates(images):
                yield record_key(partition, handle)

    def resolve(self, known: Mapping[bytes, Mvcc]) -> int | None:
        """Return the place of the definition that made the changes; None if it can't be decided."""
        left, is_seen = set(range(len(self.allowed))), False
        for handle, images in self.written.items():
            candidates = self._candidates(images)
            beside = candidates & self.beside.get((self.row["start_ts"], handle), set())
            there = {
                partition
                for partition in candidates
                if known[record_key(partition, handle)].was_written_by(self.row["start_ts"])
            }
            if there:
                is_seen = True
                left &= {i for i in left if _explains([lies[i] for lies in images], there, beside)}
        return self.allowed[max(left)] if left and (is_seen or self._leaves_nothing) else None

    @property
    def _leaves_nothing(self) -> bool:
        """Return whether the transaction inserted and deleted all rows.

        TiKV has none then, and where doesn't matter.
        """
        ends = ((kinds[0], kinds[-1]) for kinds in self.kinds.values())
        return self.has_handles and all(pair == (INSERT, DELETE) for pair in ends)

    @staticmethod
    def _candidates(images: Sequence[tuple[_Partitions, ...]]) -> set[int]:
        return {partition for lies in images for partitions in lies for partition in partitions}


def _explains(images: Sequence[_Partitions], there: set[int], beside: set[int]) -> bool:
    """Return whether a row in each partition set, and rows in all `beside`, explain `there`."""
    if any(not partitions & there for partitions in images):
        return False
    if any(len(partitions) > 1 for partitions in images):
        return there <= beside.union(*images)
    return there == beside.union(*images)


def _partitions(table: Table, image: Mapping[str, Any]) -> _Partitions:
    """Return the partitions a row may be in.

    They are one, none, or all where only TiDB can evaluate the expression.
    """
    try:
        partition = partition_of(table, image)
    except PartitionError:
        return frozenset(partition_ids(table))
    return frozenset() if partition is None else frozenset((partition,))


def _image_kinds(kind: int) -> tuple[int, ...]:
    return (UPDATE, UPDATE) if kind == UPDATE else (kind,)


def images_by_row(table: Table, rows: Mapping[int, dict[str, Any]]) -> dict[int, list[Image]]:
    """Return each change's images with their handles."""
    found: dict[int, list[Image]] = {}
    for kind, group in itertools.groupby(
        sorted(rows, key=lambda place: rows[place]["kind"]), lambda p: rows[p]["kind"]
    ):
        places = list(group)
        encoded = pa.array([rows[place]["row"] for place in places], pa.large_binary())
        if kind == UPDATE:
            sides = [batch.to_pylist() for batch in decode_updates(table, encoded)]
        else:
            sides = [
                (decode_inserts if kind == INSERT else decode_deletes)(table, encoded).to_pylist()
            ]
        for place, *images in zip(places, *sides, strict=True):
            row = rows[place]["row"]
            handles = (
                [handle_of_insert(table, row)]
                if kind == INSERT
                else handles_of_images(table, row, len(images))
            )
            found[place] = list(zip(images, handles, strict=True))
    return found
