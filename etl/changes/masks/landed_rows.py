"""Mask rows while they are landed, before a part has them.

The process that lands says which tables are masked, from which commit on each definition counts,
and which other tables it knows. Rows of a table that it doesn't know are never written as they
came: the order can't say which of their values to mask.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sluice.errors import Signal
from sluice.etl.changes.masks.encoded_rows import with_masked_rows
from sluice.etl.changes.masks.mask import Mask
from sluice.etl.changes.masks.mask_key import MaskKeyError, key_fingerprint
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.rows import RowDecodeError
from sluice.tidb.schema import Table

__all__ = ["MaskOrder", "UnknownTableRows", "masked_batches", "without_values"]

States = tuple[tuple[int, Table], ...]
"""A table's definitions, each with the commit_ts behind which it counts, ascending."""


class UnknownTableRows(Signal):
    """The order, which isn't complete, doesn't know the table of some rows."""


@dataclass(frozen=True, slots=True)
class MaskOrder:
    """What a worker masks of a window: `tables` by id, as rules mask them.

    Of these rows nothing else is written than the columns that are public or masked.
    `others`: ids of tables that no rule masks. `is_complete`: the order knows every table
    that the window describes, so rows of others belong to no table any more; else their rows raise
    UnknownTableRows.
    """

    tables: Mapping[int, States]
    others: frozenset[int] = frozenset()
    is_complete: bool = True
    _texts: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def text(self) -> str:
        """Return the order as JSON, with the fingerprints of its keys. Raises MaskKeyError."""
        if not self._texts:
            places = {
                key
                for states in self.tables.values()
                for _, table in states
                for column in table.columns
                if column.mask and (key := Mask.from_text(column.mask).key)
            }
            document = {
                "tables": {
                    str(i): [[after, table.to_json()] for after, table in states]
                    for i, states in self.tables.items()
                },
                "others": sorted(self.others),
                "is_complete": self.is_complete,
                "keys": {place: key_fingerprint(place) for place in sorted(places)},
            }
            self._texts.append(json.dumps(document))
        return self._texts[0]

    @classmethod
    @functools.lru_cache(maxsize=4)
    def from_text(cls, text: str) -> MaskOrder:
        """Return the inverse of `text`. Raises MaskKeyError if a key here is another one."""
        document = json.loads(text)
        for place, fingerprint in document["keys"].items():
            if key_fingerprint(place) != fingerprint:
                raise MaskKeyError(
                    f"the key of masks at {place} is another one in this worker than in the process"
                    " that lands"
                )
        tables = {
            int(i): tuple((after, Table.from_json(table)) for after, table in states)
            for i, states in document["tables"].items()
        }
        return cls(tables, frozenset(document["others"]), document["is_complete"])


def masked_batches(
    batches: Iterable[pa.RecordBatch], order: MaskOrder, skips: Collection[int]
) -> Iterator[pa.RecordBatch]:
    """Yield changes (PART_SCHEMA) masked; of unreadable transactions at `skips` without the rows.

    Raises RowDecodeError, MaskKeyError, UnknownTableRows.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        try:
            found = _masked(batch, order)
        except (RowDecodeError, CodecError):
            decided = np.isin(batch["commit_ts"].to_numpy(), list(skips))
            if not decided.any():
                raise
            found = _masked(_without_rows(batch, decided), order)
        yield from found.to_batches()


def without_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield changes (PART_SCHEMA) without their rows."""
    for batch in batches:
        yield _without_rows(batch, np.ones(batch.num_rows, np.bool_))


def _without_rows(batch: pa.RecordBatch, which: np.ndarray) -> pa.RecordBatch:
    at = batch.schema.get_field_index("row")
    kept = pa.array(~which)
    rows = pa.compute.if_else(kept, batch["row"], pa.scalar(b"", batch["row"].type))
    return batch.set_column(at, batch.schema.field(at), rows)


def _masked(batch: pa.RecordBatch, order: MaskOrder) -> pa.Table:
    ids, commit_ts = batch["table_id"].to_numpy(), batch["commit_ts"].to_numpy()
    found: list[tuple[Table, np.ndarray]] = []
    unknown = np.zeros(len(ids), np.bool_)
    for table_id in np.unique(ids).tolist():
        if table_id in order.others:
            continue
        places = np.flatnonzero(ids == table_id)
        if table_id not in order.tables:
            unknown[places] = True
            continue
        states = order.tables[table_id]
        after = np.array([ts for ts, _ in states])
        # committed at a DDL's own commit_ts, a row comes before it
        which = np.maximum(np.searchsorted(after, commit_ts[places], side="left") - 1, 0)
        found += [(states[n][1], places[which == n]) for n in np.unique(which).tolist()]
    if unknown.any():
        if not order.is_complete:
            raise UnknownTableRows
        batch = _without_rows(batch, unknown)
    table = pa.Table.from_batches([batch])
    if not found:
        return table
    return with_masked_rows(table.combine_chunks(), found, known_alone=True)
