"""Encode transactions and DDL as the original sends them to Kafka.

The format is `tidb/proto/secondary_binlog.proto`. A Table for each table that a transaction
changes, with its columns and unique keys; a mutation a changed row, in the order in which TiDB
wrote them. In an update `row` is the new one and `change_row` the old one. Values:

    int64_value, uint64_value   whole numbers; ENUM and SET as uint64_value
    double_value                FLOAT, DOUBLE
    string_value                text, DECIMAL, YEAR and all times (TIMESTAMP in the wanted zone)
    bytes_value                 binary strings, BIT (big-endian), JSON (its text)

Unlike the original's, updates have every column's value: there, columns that the row doesn't hold
are null. Hidden columns of expression indexes and keys over them are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import join, year_text
from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans._byte_columns import (
    BINARY,
    binary_column,
    constant_field,
    field,
    numbers_of,
    varints,
)
from sluice.etl.changes.write_plans._row_images import KindChanges
from sluice.etl.changes.write_plans._transactions import Places, Transaction, binlog_steps
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.file_binlog import type_name
from sluice.etl.changes.write_plans.raw_changes import Images
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.column_types import FLAG_PRIMARY_KEY
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import STATE_PUBLIC, Column, Table

_MUTATION_TYPE = {INSERT: 0, UPDATE: 1, DELETE: 2}
_NULL = b"\x08\x01"  # is_null = true
_NUMBER_KINDS = {"int", "enum", "set"}
_TEXT_KINDS = {"text", "decimal", "date", "datetime", "timestamp", "time"}


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Yield transaction steps, each message a slave.binlog.Binlog.

    See `sluice.etl.changes.write_plans._transactions`.
    """
    return binlog_steps(segment, timings, _mutations, _transactions)


def ddl_message(ddl: DdlJob) -> bytes:
    """Return the message of a DDL statement, of a ddl step."""
    data = pb.secondary.DDLData(
        schema_name=ddl.schema_name,
        table_name=ddl.table_name,
        ddl_query=ddl.query.encode("utf-8", "surrogateescape"),
    )
    message: bytes = pb.secondary.Binlog(
        type=pb.secondary.DDL, commit_ts=ddl.commit_ts, ddl_data=data
    ).SerializeToString()
    return message


def _transactions(
    segment: ChangeSet, places: Places, offsets: Places, data: memoryview
) -> Iterator[Transaction]:
    commit_ts, table_ids = segment.column("commit_ts", places), segment.column("table_id", places)
    frames = {table.id: _table_frame(table) for table, _ in segment.tables}
    begins = np.append(True, (commit_ts[1:] != commit_ts[:-1]) | (table_ids[1:] != table_ids[:-1]))
    starts = np.flatnonzero(begins).tolist()
    dml: list[bytes | memoryview] = []
    rows = 0
    for first, end in zip(starts, [*starts[1:], len(places)], strict=True):
        before, after = frames[int(table_ids[first])]
        mutations = data[offsets[first] : offsets[end]]
        dml += [
            b"\x0a" + encode_uvarint(len(before) + len(mutations) + len(after)) + before,
            mutations,
            after,
        ]
        rows += end - first
        if end == len(places) or commit_ts[end] != commit_ts[first]:
            yield int(commit_ts[first]), rows, dml
            dml, rows = [], 0


def _shown_columns(table: Table) -> list[Column]:
    return [column for column in table.columns if column.public and not column.hidden]


def _table_frame(table: Table) -> tuple[bytes, bytes]:
    """Return what a Table message has before and after its mutations."""
    columns = _shown_columns(table)
    head = pb.secondary.Table(
        schema_name=table.schema_name,
        table_name=table.name,
        column_info=[
            pb.secondary.ColumnInfo(
                name=column.name,
                mysql_type=type_name(column),
                is_primary_key=bool(column.flag & FLAG_PRIMARY_KEY),
                flen=_int32(column.flen),
                decimal=_int32(column.decimal),
            )
            for column in columns
        ],
    )
    shown = {column.name for column in columns}
    tail = pb.secondary.Table()
    if table.handle_column is not None:
        tail.unique_keys.add(name="PRIMARY", column_names=[table.handle_column.name])
    for index in table.indexes:
        names = [name for name, _, _ in index.columns]
        if (
            (index.unique or index.primary)
            and index.state == STATE_PUBLIC
            and shown.issuperset(names)
        ):
            tail.unique_keys.add(name=index.name, column_names=names)
    return head.SerializeToString(), tail.SerializeToString()


def _int32(length: int) -> int:
    """Narrow a length as the original does: LONGTEXT's 4294967295 becomes -1."""
    return (length + 2**31) % 2**32 - 2**31


def _mutations(changes: KindChanges) -> pa.LargeBinaryArray:
    """Return each change as a field of Table."""
    count, kind = len(changes.places), changes.kind
    head = bytes((0x08, _MUTATION_TYPE[kind]))
    row = _rows(changes.table, changes.old if kind == DELETE else changes.new, count)
    parts = [field(b"\x12", row, head)]
    if kind == UPDATE:
        parts.append(field(b"\x1a", _rows(changes.table, changes.old, count)))
    return field(b"\x22", join(*parts))


def _rows(table: Table, image: Images, count: int) -> pa.LargeBinaryArray:
    fields = [
        (
            field(b"\x0a", _values(column, image[column.name]))
            if column.name in image
            else constant_field(b"\x0a", _NULL)
        )
        for column in _shown_columns(table)
    ]
    if not any(isinstance(part, pa.Array) for part in fields):
        fields.append(pa.array([b""] * count, BINARY))
    return join(*fields)


def _values(column: Column, array: pa.Array) -> pa.LargeBinaryArray:
    """Return a column's values, each a Column message."""
    kind = column.kind
    if kind in _NUMBER_KINDS:
        tag = b"\x18" if pa.types.is_unsigned_integer(array.type) else b"\x10"
        result = join(tag, varints(numbers_of(array).view(np.uint64)))
    elif kind in ("float", "double"):
        numbers = numbers_of(array).astype("<f8")
        result = join(b"\x21", binary_column(np.arange(0, 8 * len(array) + 1, 8), numbers))
    elif kind == "bit":
        size = max(1, (column.flen + 7) // 8)
        digits = numbers_of(array).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - size :]
        result = field(
            b"\x2a",
            binary_column(np.arange(0, size * len(array) + 1, size), np.ascontiguousarray(digits)),
        )
    elif kind == "year":
        result = field(b"\x32", year_text(array.fill_null(0)).cast(BINARY))
    elif kind in _TEXT_KINDS:
        result = field(b"\x32", array.fill_null("").cast(BINARY))
    else:
        result = field(b"\x2a", array.cast(BINARY).fill_null(b""))
    return (
        pc.if_else(array.is_valid(), result, pa.scalar(_NULL, BINARY))
        if array.null_count
        else result
    )
