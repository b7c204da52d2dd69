"""Encode transactions and DDL as the original Drainer's file sink (`tidb/proto/pb_binlog.proto`).

An event a changed row, in the order in which TiDB wrote them. Inserts and updates have the columns
that a statement may set, deletes all that the row holds, generated ones too. A value is a datum:
texts for DECIMAL, JSON and all times (TIMESTAMP in the wanted zone), numbers for ENUM, SET and
BIT. In an update `value` is the old one and `changed_value` the new one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans._byte_columns import constant_field, datums, field
from sluice.etl.changes.write_plans._row_images import KindChanges
from sluice.etl.changes.write_plans._transactions import Places, Transaction, binlog_steps
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types, pb
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column

_EVENT_TYPE = {INSERT: 0, UPDATE: 1, DELETE: 2}
# As the original names them, which has no vectors.
_TYPE_NAMES = column_types.NAMES | {0: "unspecified", column_types.VECTOR: ""}


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Yield transaction steps, each message a pb_binlog.Binlog.

    See `sluice.etl.changes.write_plans._transactions`.
    """
    return binlog_steps(segment, timings, _encode_events, _encode_transactions)


def type_name(column: Column) -> str:
    """Return TiDB's name of a column's type, as both outputs of the original have it."""
    name = _TYPE_NAMES.get(column.tp, "")
    return column_types.BYTES_NAMES.get(name, name) if column.charset == "binary" else name


def ddl_message(ddl: DdlJob) -> bytes:
    """Return the message of a DDL statement, of a ddl step."""
    text = f"{ddl.query};"
    if ddl.type != Action.CREATE_SCHEMA:
        text = f"use {quote_name(ddl.schema_name)}; {text}"
    message: bytes = pb.file_binlog.Binlog(
        tp=pb.file_binlog.DDL,
        commit_ts=ddl.commit_ts,
        ddl_query=text.encode("utf-8", "surrogateescape"),
    ).SerializeToString()
    return message


def _encode_transactions(
    segment: ChangeSet, places: Places, offsets: Places, data: memoryview
) -> Iterator[Transaction]:
    commit_ts = segment.column("commit_ts", places)
    starts = np.flatnonzero(np.append(True, commit_ts[1:] != commit_ts[:-1])).tolist()
    for first, end in zip(starts, [*starts[1:], len(places)], strict=True):
        yield int(commit_ts[first]), end - first, [data[offsets[first] : offsets[end]]]


def _encode_events(changes: KindChanges) -> pa.LargeBinaryArray:
    """Return each change as a field of DMLData."""
    table, kind = changes.table, changes.kind
    head = constant_field(b"\x0a", table.schema_name.encode()) + constant_field(
        b"\x12", table.name.encode()
    )
    head += bytes((0x18, _EVENT_TYPE[kind]))
    images = changes.old if kind == DELETE else changes.new
    columns = [
        c
        for c in table.columns
        if c.public and c.name in images and (kind == DELETE or not c.generated)
    ]
    fields = []
    for column in columns:
        constant = constant_field(b"\x0a", column.name.encode()) + constant_field(
            b"\x12", bytes((column.tp,))
        )
        constant += constant_field(b"\x1a", type_name(column).encode())
        value = field(
            b"\x22", datums((changes.new if kind == INSERT else changes.old)[column.name]), constant
        )
        if kind == UPDATE:
            value = join(value, field(b"\x2a", datums(changes.new[column.name])))
        fields.append(field(b"\x22", value))
    return field(
        b"\x0a",
        join(head, *fields)
        if fields
        else pa.array([head] * len(changes.places), pa.large_binary()),
    )
