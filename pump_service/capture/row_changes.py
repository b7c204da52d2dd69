"""Make PrewriteValues of the changes of captured transactions.

A transaction is known by its net effect for each key: the value, and the value before. So a
TableMutation has deletes first, then updates, then inserts: a row that moves to another partition
is gone before it comes. An update by which a row may give the value that identifies it to another
row is a delete and an insert, because in which order they came isn't known.

A transaction of more than `MAX_VALUE_BYTES` becomes several values in the same order. Its changes
are read once for each of the three kinds then, so that no more than one value is in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.ddl_jobs import DDL_JOB_TABLE_ID, DdlBinlog
from sluice.pump_service.capture.schema_tracker import MetaChange, SchemaTracker, meta_change
from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.tidb import pb
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.partitions import PartitionError, partition_of
from sluice.tidb.record_keys import split_record_key
from sluice.tidb.rows import decode_inserts, decode_updates
from sluice.tidb.schema import Table

MAX_VALUE_BYTES = 32 << 20
"""Bytes of rows in one PrewriteValue: a pump needs some three times as much to write and to hand it
out.
"""

_REORGANIZATION_BITS = 0xFF00
"""Bits of txn_source by which TiDB marks the rows that MODIFY COLUMN converts; TiKV before 6.5.1
sends them.
"""

_BATCH_CHANGES = 1024
_NOT_CONVERTED: kernel.Target = (b"", (), [], [], [])
_DELETE, _UPDATE, _INSERT = 1, 2, 4
_KINDS = (_DELETE, _UPDATE, _INSERT)
"""As what a change is written, in the order of a PrewriteValue; a change may be two of them."""


@dataclass(slots=True)
class TransactionContents:
    """Hold the changes of a transaction: user table rows, schema keys, rows of running DDL jobs."""

    parts: Iterator[PrewriteRows] = field(default_factory=lambda: iter(()))
    """Its rows; none if the transaction changed none that are replicated, several if it is large.
    """
    is_split: bool = False
    first_key: bytes = b""
    """The first key that was changed."""
    schema_changes: list[MetaChange] = field(default_factory=list)
    jobs: list[tuple[bytes, bytes]] = field(default_factory=list)


class _Targets(dict[int, kernel.Target | None]):
    """Where compiled code puts the rows, by physical table id.

    Each is made when its first row comes.
    """

    def __init__(self, rows: PrewriteRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, physical_id: int) -> kernel.Target | None:
        rows = self._rows
        if physical_id == DDL_JOB_TABLE_ID or physical_id in rows.doubted:
            found = self[physical_id] = _NOT_CONVERTED
            return found
        converter = rows.schema.converter(physical_id, rows.commit_ts)
        target = None if converter is None else (*converter.shape, *rows.lists(converter.table.id))
        self[physical_id] = target
        return target


class PrewriteRows:
    """Collect the rows of one PrewriteValue by table, each table's by kind."""

    __slots__ = ("commit_ts", "count", "doubted", "schema", "size", "tables", "targets")

    def __init__(self, schema: SchemaTracker, transaction: CapturedTransaction) -> None:
        self.schema, self.commit_ts = schema, transaction.commit_ts
        self.doubted = schema.exchanged_since(transaction.start_ts)
        self.tables: kernel.Tables = {}
        self.targets = _Targets(self)
        self.size = self.count = 0

    def add(self, table_id: int, kind: int, row: bytes) -> None:
        self.lists(table_id)[_KINDS.index(kind)].append(row)
        self.size += len(row)
        self.count += 1

    def lists(self, table_id: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Return a table's deleted, updated and inserted rows."""
        lists = self.tables.get(table_id)
        if lists is None:
            lists = self.tables[table_id] = ([], [], [])
        return lists

    def encode(self, start_ts: int, key: bytes) -> bytes:
        """Return the Prewrite; `key` is one that the transaction changed."""
        return kernel.encode(start_ts, self.commit_ts, key, self.schema.schema_version, self.tables)


class ChangeConverter:
    """Convert the changes of transactions by the definitions that the schema tracker has."""

    def __init__(self, schema: SchemaTracker, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        self._schema, self._max_value_bytes = schema, max_value_bytes
        self.rows = 0

    def read(self, transaction: CapturedTransaction) -> TransactionContents:
        """Return the contents; `parts` must be used up before the definitions change.

        Rows that ALTER TABLE converts are left out: TiDB has no binlog of them.

        Raises CodecError, SchemaError, UnknownTableError; so does `parts`.
        """
        found = TransactionContents()
        if transaction.txn_source & _REORGANIZATION_BITS:
            return found
        rows = PrewriteRows(self._schema, transaction)
        for changes in _batches(transaction.changes):
            found.first_key = found.first_key or changes[0].key
            at = 0
            while at < len(changes):
                at = self._convert(rows, changes, at)
                if rows.size > self._max_value_bytes:
                    found.parts, found.is_split = self._split(transaction), True
                    return found
                if at < len(changes):
                    self._read_one(found, rows, changes[at])
                    at += 1
        if rows.count:
            self.rows += rows.count
            found.parts = iter((rows,))
        return found

    def _split(self, transaction: CapturedTransaction) -> Iterator[PrewriteRows]:
        rows = PrewriteRows(self._schema, transaction)
        kinds = bytearray()  # of each change, in the order in which they come
        for kind in _KINDS:
            if kind != _DELETE and not any(mask in kinds for mask in range(1, 8) if mask & kind):
                continue
            begin = 0
            for batch in _batches(transaction.changes):
                if kind == _DELETE:
                    kinds += bytes(self._kinds_of(change, rows.commit_ts) for change in batch)
                own = kinds[begin : begin + len(batch)]
                begin += len(batch)
                changes = [change for change, mask in zip(batch, own, strict=True) if mask & kind]
                at = 0
                while at < len(changes):
                    at = self._convert(rows, changes, at)
                    if at < len(changes) and rows.size <= self._max_value_bytes:
                        self._add(rows, changes[at], kind)
                        at += 1
                    if rows.size > self._max_value_bytes:
                        self.rows += rows.count
                        yield rows
                        rows = PrewriteRows(self._schema, transaction)
        if rows.count:
            self.rows += rows.count
            yield rows

    def _convert(self, rows: PrewriteRows, changes: list[KeyChange], at: int) -> int:
        """Convert what compiled code can, and return the place of the first change that is left."""
        place, count, size = kernel.convert(
            changes, at, rows.targets, self._max_value_bytes - rows.size
        )
        rows.count += count
        rows.size += size
        return place

    def _read_one(self, found: TransactionContents, rows: PrewriteRows, change: KeyChange) -> None:
        """Take in a change of any key."""
        if change.key[:1] == b"m":
            schema_change = meta_change(change.key, change.value)
            if schema_change is not None:
                found.schema_changes.append(schema_change)
        elif not self._add(rows, change) and change.value:
            place = split_record_key(change.key)
            if place is not None and place[0] == DDL_JOB_TABLE_ID:
                found.jobs.append((change.key, change.value))

    def _add(self, rows: PrewriteRows, change: KeyChange, only: int | None = None) -> bool:
        """Add a change of a replicated row, or what of it is of the kind `only`.

        Returns whether it is one.
        """
        place = split_record_key(change.key)
        if place is None:
            return False
        physical_id, handle = place
        converter = self._schema.converter(physical_id, rows.commit_ts)
        if converter is None:
            return False
        # nothing is other, or the transaction has deleted what it inserted
        if change.value == change.old_value:
            return True
        table = converter.table
        kinds = self._kinds_of(change, rows.commit_ts)
        try:
            for kind in _KINDS:
                if not kinds & (kind if only is None else kind & only):
                    continue
                if kind == _INSERT:
                    row = converter.insert(handle, change.value)
                elif kind == _UPDATE:
                    row = converter.update(handle, change.old_value, change.value)
                else:
                    row = converter.delete(handle, change.old_value)
                is_misplaced = physical_id in rows.doubted and _is_misplaced(
                    table, kind, row, physical_id
                )
                # As TiDB's binlog has it, which wrote to the table: landing stops there and names
                # the row.
                rows.add(physical_id if is_misplaced else table.id, kind, row)
        except CodecError as error:
            raise _named(error, table, change, physical_id, rows.commit_ts) from error
        return True

    def _kinds_of(self, change: KeyChange, commit_ts: int) -> int:
        """Return as what a change is written, as a sum. Raises CodecError."""
        if change.is_delete:
            return _DELETE
        if not change.old_value:
            return _INSERT
        place = split_record_key(change.key)
        converter = None if place is None else self._schema.converter(place[0], commit_ts)
        if place is None or converter is None:
            return _UPDATE
        try:
            is_passed_on = converter.gives_key_up(place[1], change.old_value, change.value)
        except CodecError as error:
            raise _named(error, converter.table, change, place[0], commit_ts) from error
        return _DELETE | _INSERT if is_passed_on else _UPDATE


def _named(
    error: CodecError, table: Table, change: KeyChange, physical_id: int, commit_ts: int
) -> CodecError:
    """Return the error with the place of the change that can't be read."""
    return CodecError(
        f"table {table.full_name} (id {physical_id}), key {change.key.hex()} at commit_ts"
        f" {commit_ts}: {error}"
    )


def _batches(changes: Iterable[KeyChange]) -> Iterator[list[KeyChange]]:
    """Yield the changes in lists, since those of a large transaction come from disk."""
    if isinstance(changes, list):
        if changes:
            yield changes
        return
    rest = iter(changes)
    while batch := list(itertools.islice(rest, _BATCH_CHANGES)):
        yield batch


def _is_misplaced(table: Table, kind: int, row: bytes, physical_id: int) -> bool:
    """Return whether a row lies in a partition where its values don't belong.

    False where only TiDB can evaluate that.
    """
    if kind == _DELETE:
        return False
    encoded = pa.array([row], pa.large_binary())
    values = (
        decode_inserts(table, encoded) if kind == _INSERT else decode_updates(table, encoded)[1]
    )
    try:
        return partition_of(table, values.to_pylist()[0]) != physical_id
    except PartitionError:
        return False


def encode_ddl(start_ts: int, commit_ts: int, key: bytes, ddl: DdlBinlog) -> bytes:
    """Return the Prewrite of a DDL as TiDB writes it, but with its commit_ts."""
    message = pb.binlog.Binlog(
        tp=pb.binlog.Prewrite,
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=key,
        ddl_query=ddl.query.encode("utf-8", "surrogateescape"),
        ddl_job_id=ddl.job_id,
        ddl_schema_state=ddl.schema_state,
    )
    found: bytes = message.SerializeToString()
    return found
