"""Make PrewriteValues of the changes of captured transactions.

A transaction is known by its net effect for each key: the value, and the value before. So a TableMutation has deletes
first, then updates, then inserts: a row that moves to another partition, or gives a unique value to another row, is
gone before it comes.

A transaction of more than `MAX_VALUE_BYTES` becomes several values in the same order. Its changes are read once for
each of the three kinds then, so that no more than one value is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.pump_service.capture.ddl_jobs import DDL_JOB_TABLE_ID, DdlBinlog
from sluice.pump_service.capture.schema_tracker import MetaChange, SchemaTracker, meta_change
from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.tidb import pb
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.record_keys import split_record_key

MAX_VALUE_BYTES = 64 << 20
"""Bytes of rows in one PrewriteValue: a pump needs some three times as much to write and to hand it out."""

_REORGANIZATION_BITS = 0xFF00
"""Bits of txn_source by which TiDB marks the rows that MODIFY COLUMN converts; TiKV before 6.5.1 sends them."""

_DELETE, _UPDATE, _INSERT = range(3)
_SEQUENCE = (pb.binlog.DeleteRow, pb.binlog.Update, pb.binlog.Insert)


@dataclass(slots=True)
class TransactionContents:
    """Hold what a transaction changed: rows of user tables, schema keys, and rows of running DDL jobs."""

    values: Iterator[bytes] = field(default_factory=lambda: iter(()))
    """PrewriteValues; none if the transaction changed no rows that are replicated."""
    is_split: bool = False
    first_key: bytes = b""
    """The first row that is replicated, or the first key of all."""
    schema_changes: list[MetaChange] = field(default_factory=list)
    jobs: list[tuple[bytes, bytes]] = field(default_factory=list)


class _Rows:
    """Collect the rows of one PrewriteValue by table, each table's by kind."""

    __slots__ = ("count", "size", "tables")

    def __init__(self) -> None:
        self.tables: dict[int, tuple[list[bytes], list[bytes], list[bytes]]] = {}
        self.size = self.count = 0

    def add(self, table_id: int, kind: int, row: bytes) -> None:
        lists = self.tables.get(table_id)
        if lists is None:
            lists = self.tables[table_id] = ([], [], [])
        lists[kind].append(row)
        self.size += len(row)
        self.count += 1

    def value(self, schema_version: int) -> bytes:
        """Return the PrewriteValue."""
        message = pb.binlog.PrewriteValue(schema_version=schema_version)
        for table_id, (deleted, updated, inserted) in self.tables.items():
            message.mutations.add(
                table_id=table_id,
                inserted_rows=inserted,
                updated_rows=updated,
                deleted_rows=deleted,
                sequence=[
                    kind
                    for kind, rows in zip(_SEQUENCE, (deleted, updated, inserted), strict=True)
                    for _ in range(len(rows))
                ],
            )
        found: bytes = message.SerializeToString()
        return found


class ChangeConverter:
    """Convert the changes of transactions by the definitions that the schema tracker has."""

    def __init__(self, schema: SchemaTracker, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        self._schema, self._max_value_bytes = schema, max_value_bytes
        self.rows = 0

    def read(self, transaction: CapturedTransaction) -> TransactionContents:
        """Return the contents; `values` must be used up before the definitions change.

        Rows that ALTER TABLE converts are left out: TiDB has no binlog of them.

        Raises CodecError, SchemaError, UnknownTableError; so does `values`.
        """
        found = TransactionContents()
        if transaction.txn_source & _REORGANIZATION_BITS:
            return found
        rows = _Rows()
        for change in transaction.changes:
            key = change.key
            if not rows.count:
                found.first_key = key
            if key[:1] == b"m":
                schema_change = meta_change(key, change.value)
                if schema_change is not None:
                    found.schema_changes.append(schema_change)
            elif not self._add(rows, change, transaction.commit_ts) and change.value:
                place = split_record_key(key)
                if place is not None and place[0] == DDL_JOB_TABLE_ID:
                    found.jobs.append((key, change.value))
            if rows.size > self._max_value_bytes:
                found.values, found.is_split = self._split(transaction), True
                return found
        self.rows += rows.count
        if rows.count:
            found.values = iter((rows.value(self._schema.schema_version),))
        return found

    def _split(self, transaction: CapturedTransaction) -> Iterator[bytes]:
        version = self._schema.schema_version
        rows = _Rows()
        for kind in (_DELETE, _UPDATE, _INSERT):
            for change in transaction.changes:
                if _kind_of(change) == kind:
                    self._add(rows, change, transaction.commit_ts)
                    if rows.size > self._max_value_bytes:
                        self.rows += rows.count
                        yield rows.value(version)
                        rows = _Rows()
        if rows.count:
            self.rows += rows.count
            yield rows.value(version)

    def _add(self, rows: _Rows, change: KeyChange, commit_ts: int) -> bool:
        """Add a change of a replicated row; return whether it is one."""
        place = split_record_key(change.key)
        if place is None:
            return False
        physical_id, handle = place
        converter = self._schema.converter(physical_id, commit_ts)
        if converter is None:
            return False
        kind = _kind_of(change)
        try:
            if change.value == change.old_value:  # nothing is other, or the transaction has deleted what it inserted
                return True
            if kind == _INSERT:
                row = converter.insert(handle, change.value)
            elif kind == _UPDATE:
                row = converter.update(handle, change.old_value, change.value)
            else:
                row = converter.delete(handle, change.old_value)
        except CodecError as error:
            table = converter.table
            raise CodecError(
                f"table {table.full_name} (id {physical_id}), key {change.key.hex()} at commit_ts {commit_ts}: {error}"
            ) from error
        rows.add(converter.table.id, kind, row)
        return True


def _kind_of(change: KeyChange) -> int:
    if change.is_delete:
        return _DELETE
    return _UPDATE if change.old_value else _INSERT


def encode_prewrite(
    start_ts: int, commit_ts: int, key: bytes, *, prewrite_value: bytes | None = None, ddl: DdlBinlog | None = None
) -> bytes:
    """Return a Prewrite as TiDB writes it, but with its commit_ts: of rows, or of a DDL."""
    message = pb.binlog.Binlog(tp=pb.binlog.Prewrite, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key)
    if prewrite_value is not None:
        message.prewrite_value = prewrite_value
    if ddl is not None:
        message.ddl_query = ddl.query.encode("utf-8", "surrogateescape")
    message.ddl_job_id = 0 if ddl is None else ddl.job_id
    message.ddl_schema_state = 0 if ddl is None else ddl.schema_state
    found: bytes = message.SerializeToString()
    return found
