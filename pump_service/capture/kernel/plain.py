"""Stand in for the compiled code: nothing is matched or converted, and protobuf encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sluice.pump_service.capture.transactions import KeyChange
from sluice.tidb import pb

_SEQUENCE = (pb.binlog.DeleteRow, pb.binlog.Update, pb.binlog.Insert)

Tables: TypeAlias = dict[int, tuple[list[bytes], list[bytes], list[bytes]]]
"""Deleted, updated and inserted rows by table id."""
Target: TypeAlias = tuple[bytes, tuple[bytes | None, ...], list[bytes], list[bytes], list[bytes]]
"""Shape and missing datums of a table (see `StoredRowConverter.shape`); its deleted, updated and
inserted rows.
"""


Matched: TypeAlias = tuple[
    int, list[tuple[int, int, int]], list[tuple[int, int, int, list[KeyChange]]]
]
"""Place of the first row that isn't done; start_ts, prewrites and bytes that came (or went, below
zero); commit_ts, start_ts, txn_source and changes that are committed.
"""


def match(  # noqa: PLR0913 a compiled function, called at one place
    entries: bytes,
    begin: int,
    bounds: tuple[bytes, bytes],
    resolved_ts: int,
    prewrites: dict[int, dict[bytes, Any]],
    types: tuple[type, type],
    /,
) -> Matched:
    """Match the rows of an Entries message from `begin` on, as an initialized matcher does.

    `bounds` are start and end of its range, `prewrites` its open ones, `types` KeyChange and
    Prewrite. It stops in front of a row that isn't as nearly all are.

    Here it stops at once.
    """
    return begin, [], []


def convert(
    changes: Sequence[Any], begin: int, targets: dict[int, Target | None], room: int, /
) -> tuple[int, int, int]:
    """Append the rows of `changes` to the lists of their targets, from the place `begin` on.

    `targets` is by physical table id, and makes those that are missing; changes of None are left
    out. Return the place of the first change that isn't converted, how many rows were, and their
    bytes. It stops behind `room` bytes, and in front of a change of another key, or of a row that
    it doesn't know.

    Here it stops at once.
    """
    return begin, 0, 0


def encode(
    start_ts: int, commit_ts: int, key: bytes, schema_version: int, tables: Tables, /
) -> bytes:
    """Return the Prewrite of a transaction, with its commit_ts; `key` is one that it changed.

    Each table has deletes first, then updates, then inserts.
    """
    value = pb.binlog.PrewriteValue(schema_version=schema_version)
    for table_id, lists in tables.items():
        deleted, updated, inserted = lists
        sequence = [
            kind for kind, rows in zip(_SEQUENCE, lists, strict=True) for _ in range(len(rows))
        ]
        if sequence:
            value.mutations.add(
                table_id=table_id,
                inserted_rows=inserted,
                updated_rows=updated,
                deleted_rows=deleted,
                sequence=sequence,
            )
    message = pb.binlog.Binlog(
        tp=pb.binlog.Prewrite,
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=key,
        prewrite_value=value.SerializeToString(),
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    found: bytes = message.SerializeToString()
    return found
