"""Drop the second copy of each change that TiDB writes while it reorganizes partitions.

From its second schema version on, REORGANIZE PARTITION has sessions write each row into the old and
the new partition. Each write adds a change to the binlog, and a change names the logical table
only. The copy follows its original within the transaction, and changes nothing that the original
hasn't changed:

    INSERT b        insert b, insert b
    DELETE a        delete a, delete a
    UPDATE a to b   update a to b, and the same, or insert b and delete a;
                    first insert b, delete a if the row moves

So a change is a copy if the transaction has made the row that it inserts, or has taken away the row
that it removes. Rows are compared by all values. That can't go wrong for a clustered key. Rows
without one are distinguished by their hidden row id, but many versions of TiDB give the copy of an
INSERT another one. Whether two equal rows of a transaction are two rows or a row and its copy is
asked of TiKV: a copy is in another partition.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.landing.definitions_used import DefinitionUnknownError, ReadVersions
from sluice.relay import DELETE, INSERT, UPDATE, Part, RelayLog, read_parts
from sluice.tidb import tso
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.record_keys import record_key
from sluice.tidb.rows import ROWID_NAME, decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table
from sluice.tidb.table_name import argument

log = logging.getLogger("sluice.land")

_Values = tuple[Any, ...]
_Row = tuple[_Values, int]
"""All values of a row but its hidden row id, and that; 0 in a table with a clustered key."""
PhysicalIds = Callable[[Table, int, int], Collection[int]]
"""Returns the ids under which a transaction may have written rows of a table.

Arguments: the table, the transaction's start ts and commit ts.
"""


@dataclass(frozen=True, slots=True)
class _DecodedChange:
    place: int
    """Place of the change in the part."""
    kind: int
    rows: tuple[_Row, ...]
    """Rows that it inserts or deletes; the old and the new row of an update."""


@dataclass(slots=True)
class _Transaction:
    """The changes of one transaction to one table, gone through in order."""

    table: Table
    start_ts: int
    commit_ts: int
    copies: list[int] = field(default_factory=list)
    """Places."""
    row_ids_differ: bool = False
    _made: set[_Row] = field(default_factory=set)
    _removed: set[_Row] = field(default_factory=set)
    _equal: dict[_Values, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Row id and place of the INSERT (or -1) of each row that the transaction made, by values."""
    _ambiguous: set[_Values] = field(default_factory=set)
    _keeps_row_ids: bool = False
    """True if an INSERT had a copy with the same row id: then all have."""
    _deleted_rows: dict[_Values, bool] = field(default_factory=dict)
    """True if written twice, by values of doubtful rows of which one was removed."""

    @property
    def has_row_ids(self) -> bool:
        """Return whether rows have hidden row ids."""
        return self.table.handle_kind == "heap"

    def process(self, change: _DecodedChange) -> None:
        """Process the next change."""
        if change.kind == INSERT:
            self._insert(change.place, change.rows[0])
            return
        old = change.rows[0]
        if old in self._removed:
            self.copies.append(change.place)
            if old[0] in self._deleted_rows:
                self._deleted_rows[old[0]] = True
            if change.kind == UPDATE and change.rows[1] not in self._made:
                self.row_ids_differ = True
            return
        self._remove(old)
        if change.kind == UPDATE:
            self._make(change.rows[1], -1)

    def _insert(self, place: int, row: _Row) -> None:
        if row in self._made:
            self.copies.append(place)
            self._keeps_row_ids = True
            return
        if self.has_row_ids and self._equal[row[0]]:
            self._ambiguous.add(row[0])
        self._make(row, place)

    def _make(self, row: _Row, place: int) -> None:
        self._made.add(row)
        self._removed.discard(row)
        if self.has_row_ids:
            self._equal[row[0]].append((row[1], place))

    def _remove(self, row: _Row) -> None:
        self._made.discard(row)
        self._removed.add(row)
        if row[0] in self._ambiguous:
            self._deleted_rows.setdefault(row[0], False)
        elif self.has_row_ids:
            self._equal[row[0]] = [pair for pair in self._equal[row[0]] if pair[0] != row[1]]

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the transaction made equal rows of which some may be copies of others."""
        return bool(self._ambiguous) and not self._keeps_row_ids

    def row_ids_in_doubt(self) -> set[int]:
        """Return the row ids of equal rows, of which some may be copies of others."""
        return {
            row_id
            for values in self._ambiguous - self._deleted_rows.keys()
            for row_id, _ in self._equal[values]
        }

    def resolve(self, lies_in: Mapping[int, set[int]]) -> bool:
        """Find the copies among equal rows.

        `lies_in`: the partitions of each row id. False if that can't be known.

        A row that is removed is removed twice, if it was written twice: then no question is needed.
        """
        for values in self._ambiguous:
            equal = self._equal[values]
            if values in self._deleted_rows:
                if self._deleted_rows[values]:
                    if len(equal) % 2 or any(place < 0 for _, place in equal):
                        return False
                    self.copies += [place for _, place in equal[1::2]]
                    self.row_ids_differ = True
                continue
            written = [lies_in.get(row_id, set()) for row_id, _ in equal]
            if not all(written):
                return False
            first = written[0]
            alone = [ids for ids in written if len(ids) == 1]
            if len(first) > 1 and alone:
                first = first - alone[0]  # its own copy was written by the row id that it had
            for (_, place), ids in zip(equal, written, strict=True):
                if place >= 0 and not ids & first:
                    self.copies.append(place)
                    self.row_ids_differ = True
        return True


class DuplicateWrites:
    """Drop copies from the parts of a window."""

    def __init__(self, relay: RelayLog, read_versions: ReadVersions) -> None:
        self._relay, self._read_versions = relay, read_versions
        self._numbers = itertools.count()

    def drop_copies(  # noqa: PLR0913 what is asked for seldom, by name
        self,
        parts: Sequence[Part],
        tables: Collection[int],
        schema: RecordedSchema,
        physical_ids: PhysicalIds,
        bounds: tuple[int, int, str],
        skips: Collection[int] = (),
    ) -> tuple[tuple[Part, ...], set[int]]:
        """Return the parts without copies, and tables with a copy under another hidden row id.

        `tables`: those that are or were reorganized lately. `schema`: the window's. `bounds`: lo
        and hi (TSO) of the window and a token for new parts. Transactions committed at `skips` are
        left as they are. Raises DefinitionUnknownError, TiKVError, RowDecodeError and relay
        errors.
        """
        tables_at = SchemaTimeline(schema)
        differ: set[int] = set()
        found = []
        for number, part in enumerate(parts):
            changes = read_parts(self._relay.url, (part,))
            own = [
                each
                for table_id in tables
                for each in _transactions(changes, table_id, tables_at, skips)
            ]
            self._resolve([each for each in own if each.is_in_doubt], physical_ids)
            differ |= {each.table.id for each in own if each.row_ids_differ}
            copies = [place for each in own for place in each.copies]
            found.append(self._without(part, number, changes, copies, bounds) if copies else part)
        return tuple(part for part in found if part is not None), differ

    def _resolve(self, doubtful: Sequence[_Transaction], physical_ids: PhysicalIds) -> None:
        wanted: dict[int, dict[tuple[int, int], bytes]] = {}
        for each in doubtful:
            row_ids = each.row_ids_in_doubt()
            ids = physical_ids(each.table, each.start_ts, each.commit_ts) if row_ids else ()
            wanted[each.start_ts] = {
                (row_id, i): record_key(i, encode_int(row_id)) for row_id in row_ids for i in ids
            }
        keys = {key for own in wanted.values() for key in own.values()}
        known = self._read_versions(keys) if keys else {}
        for each in doubtful:
            lies_in: dict[int, set[int]] = defaultdict(set)
            for (row_id, physical_id), key in wanted[each.start_ts].items():
                if known[key].was_written_by(each.start_ts):
                    lies_in[row_id].add(physical_id)
            if not each.resolve(lies_in):
                raise self._unknown(each)

    @staticmethod
    def _unknown(transaction: _Transaction) -> DefinitionUnknownError:
        commit_ts, name = transaction.commit_ts, transaction.table.full_name
        return DefinitionUnknownError(
            f"transaction at commit_ts {commit_ts} ({tso.text(commit_ts)}) wrote equal rows of"
            f" table {name!r} while its partitions were reorganized, and TiKV has no write that"
            " shows which of them are copies",
            hint=(
                f"leave it out: `sluice txn skip {commit_ts}`, then copy the table again:"
                f" `sluice backfill --table {argument(name)}`"
            ),
        )

    def _without(
        self,
        part: Part,
        number: int,
        changes: pa.Table,
        copies: Sequence[int],
        bounds: tuple[int, int, str],
    ) -> Part | None:
        log.info(
            "second writes of reorganized partitions left out: rows=%d part=%s",
            len(copies),
            part.path,
        )
        kept = np.ones(changes.num_rows, dtype=bool)
        kept[list(copies)] = False
        lo, hi, token = bounds
        batches = changes.filter(pa.array(kept)).to_batches()
        return self._relay.write_part(lo, hi, f"{token}.once{next(self._numbers)}", number, batches)


def _transactions(
    changes: pa.Table, table_id: int, tables_at: SchemaTimeline, skips: Collection[int]
) -> Iterator[_Transaction]:
    """Yield the changes of each transaction that changed a table more than once."""
    places = np.flatnonzero(changes["table_id"].to_numpy() == table_id)
    started = changes["start_ts"].to_numpy()[places]
    _, at, counts = np.unique(started, return_inverse=True, return_counts=True)
    places = places[counts[at] > 1]
    if not len(places):
        return
    rows = changes.take(pa.array(places, pa.int64())).to_pylist()
    own: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for place, row in zip(places.tolist(), rows, strict=True):
        if row["commit_ts"] not in skips:
            own[row["start_ts"]].append((place, row))
    by_table: dict[int, tuple[Table, list[tuple[int, dict[str, Any]]]]] = {}
    for found in own.values():
        table = tables_at.reads(table_id, found[0][1]["commit_ts"])
        if table is not None:
            by_table.setdefault(id(table), (table, []))[1].extend(found)
    for table, found in by_table.values():
        decoded = _decoded(table, found)
        for _, group in itertools.groupby(found, lambda pair: pair[1]["start_ts"]):
            members = sorted(group, key=lambda pair: pair[1]["position"])
            transaction = _Transaction(table, members[0][1]["start_ts"], members[0][1]["commit_ts"])
            for place, _ in members:
                transaction.process(decoded[place])
            yield transaction


def _decoded(table: Table, rows: Sequence[tuple[int, dict[str, Any]]]) -> dict[int, _DecodedChange]:
    """Return the changes by place."""
    found: dict[int, _DecodedChange] = {}
    for kind in (INSERT, UPDATE, DELETE):
        own = [(place, row["row"]) for place, row in rows if row["kind"] == kind]
        if not own:
            continue
        encoded = pa.array([row for _, row in own], pa.large_binary())
        if kind == UPDATE:
            sides = [_rows(batch) for batch in decode_updates(table, encoded)]
        else:
            sides = [_rows((decode_inserts if kind == INSERT else decode_deletes)(table, encoded))]
        for (place, _), *images in zip(own, *sides, strict=True):
            found[place] = _DecodedChange(place, kind, tuple(images))
    return found


def _rows(batch: pa.RecordBatch) -> list[_Row]:
    names = batch.schema.names
    row_ids = batch[ROWID_NAME].to_pylist() if ROWID_NAME in names else [0] * batch.num_rows
    columns = [batch[name].to_pylist() for name in names if name != ROWID_NAME]
    return list(zip(zip(*columns, strict=True), row_ids, strict=True))
