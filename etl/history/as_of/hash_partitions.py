"""Distribute a table's rows to parts by the bytes of their keys.

So two readings of a table, here and on Spark, can be compared part by part, and only the rows of
parts that differ need to be transferred.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.history.as_of.aggregations import AggregateResult, to_ipc
from sluice.etl.history.as_of.bucket import Results
from sluice.etl.history.as_of.fingerprint import compared_columns
from sluice.etl.history.as_of.lineage import TableGroup
from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.etl.history.as_of.row_digests import row_digests
from sluice.tidb.schema import Column, Table

_CHUNK_ROWS = 20_000
_SIGNED_ZEROS = ("double",)
"""A FLOAT's zero may have lost its sign on the way into a base."""


@dataclass(slots=True)
class PartSums:
    """Each part's row count and the sums of its digests.

    The sums are in two lanes of 64 bits modulo 2^64: equal for the same rows in whatever order. A
    part without rows has zeros.
    """

    parts: int
    sums: np.ndarray = field(init=False)
    """uint64 in the shape (3, parts): rows, upper lane, lower lane."""

    def __post_init__(self) -> None:
        self.sums = np.zeros((3, self.parts), np.uint64)

    @property
    def rows(self) -> int:
        return int(self.sums[0].sum())

    def add(self, table: Table, batch: pa.RecordBatch | pa.Table) -> None:
        """Add rows: `compared_columns` in types of `sluice.tidb.rows.arrow_schema`."""
        if not batch.num_rows:
            return
        upper, lower, at = _digests(table, batch, self.parts)
        np.add.at(self.sums[0], at, np.uint64(1))
        np.add.at(self.sums[1], at, upper)
        np.add.at(self.sums[2], at, lower)

    def add_all(self, other: PartSums) -> None:
        """Take another reading's rows in, of the same parts."""
        self.sums += other.sums

    def differing(self, other: PartSums) -> list[int]:
        """Return the numbers of the parts that differ."""
        return [int(number) for number in np.flatnonzero((self.sums != other.sums).any(axis=0))]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the parts that have rows. `from_json` is the inverse."""
        at = np.flatnonzero(self.sums[0])
        return {
            "parts": self.parts,
            "at": at.tolist(),
            "sums": [lane[at].tolist() for lane in self.sums],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        found = cls(int(document["parts"]))
        at = np.array(document["at"], np.int64)
        for lane, values in zip(found.sums, document["sums"], strict=True):
            lane[at] = np.array(values, np.uint64)
        return found


def key_columns_of(table: Table) -> list[Column]:
    """Return the columns by which rows are the same on both sides.

    They are the key that finds rows downstream, else all that is compared. A key that a database
    computes isn't in what is read, so there all count, too.
    """
    key = lookup_key_columns(table)
    return key if key and not any(column.generated for column in key) else compared_columns(table)


def rows_of_parts(
    table: Table, batch: pa.RecordBatch | pa.Table, parts: int, wanted: Sequence[int]
) -> pa.Table:
    """Return the rows of some parts."""
    rows = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    if not rows.num_rows:
        return rows
    at = _parts_of(table, rows, parts)
    return rows.filter(pa.array(np.isin(at, np.array(wanted, np.int64))))


def _digests(
    table: Table, batch: pa.RecordBatch | pa.Table, parts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns = compared_columns(table)
    rows = row_bytes(columns, {c.name: batch[c.name] for c in columns}, signed_zeros=_SIGNED_ZEROS)
    upper, lower = row_digests(rows)
    return upper, lower, _parts_of(table, batch, parts)


def _parts_of(table: Table, batch: pa.RecordBatch | pa.Table, parts: int) -> np.ndarray:
    key = key_columns_of(table)
    _, lower = row_digests(
        row_bytes(key, {c.name: batch[c.name] for c in key}, signed_zeros=_SIGNED_ZEROS)
    )
    return (lower % np.uint64(parts)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class CollectPartSums:
    """PartSums of each table, as JSON. Runs in Spark's workers."""

    parts: int

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        for (moment, name), rows in found.items():
            sums = PartSums(self.parts)
            sums.add(family.version_at(moment, name).table, rows)
            yield AggregateResult(moment, name, json.dumps(sums.to_json()).encode())


@dataclass(frozen=True, slots=True)
class CollectPartRows:
    """The rows of some parts, by table, as Arrow IPC streams of `compared_columns`.

    Runs in Spark's workers.
    """

    parts: int
    wanted: Mapping[str, Sequence[int]]

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        for (moment, name), rows in found.items():
            table = family.version_at(moment, name).table
            if not (numbers := self.wanted.get(name)):
                continue
            within = rows_of_parts(
                table, rows.select([c.name for c in compared_columns(table)]), self.parts, numbers
            )
            for first in range(0, within.num_rows, _CHUNK_ROWS):
                yield AggregateResult(moment, name, to_ipc(within.slice(first, _CHUNK_ROWS)))
