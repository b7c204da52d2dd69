"""Decode one row change for people and messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import display_text
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import ROWID_NAME, decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table

__all__ = ["KINDS", "RowChange", "decode", "key_columns", "unknown_table"]

KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_SHOWN_BYTES = 64


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change.

    `key`, `old` and `new` hold values by column name, None where the kind has none; `others`: the
    values of further unique keys; `fault`: the reason why the row can't be decoded.
    """

    commit_ts: int
    start_ts: int
    position: int
    table: str
    kind: str
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    fault: str = ""
    others: dict[str, Any] = field(default_factory=dict)


def decode(raw: Mapping[str, Any], table: Table | None) -> RowChange:
    """Return a row of PART_SCHEMA as a RowChange."""
    kind = int(raw["kind"])
    old = new = None
    fault = "" if table else "the window doesn't describe this table"
    if table is not None:
        try:
            old, new = _images(table, kind, raw["row"])
        except ValueError as error:
            shown = raw["row"][:_SHOWN_BYTES].hex() + (
                "…" if len(raw["row"]) > _SHOWN_BYTES else ""
            )
            fault = f"{error}; {len(raw['row'])} bytes: {shown}"
    image = old or new or {}
    names = key_columns(table) if table else ()
    further = [
        name for key in (table.unique_keys() if table else []) for name in key if name not in names
    ]
    return RowChange(
        raw["commit_ts"],
        raw["start_ts"],
        raw["position"],
        table.full_name if table else unknown_table(raw["table_id"]),
        KINDS.get(kind, f"kind {kind}"),
        {name: image[name] for name in names if name in image},
        old,
        new,
        fault,
        {name: (new or image)[name] for name in further if name in image},
    )


def key_columns(table: Table) -> tuple[str, ...]:
    """Return the key that identifies a table's rows.

    It is the primary key, else the first unique key, else TiDB's hidden row id.
    """
    keys = table.unique_keys()
    return tuple(keys[0]) if keys else (ROWID_NAME,)


def _images(
    table: Table, kind: int, row: bytes
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    rows = pa.array([row], pa.large_binary())
    if kind == INSERT:
        return None, _values(decode_inserts(table, rows))
    if kind == DELETE:
        return _values(decode_deletes(table, rows)), None
    before, after = decode_updates(table, rows)
    return _values(before), _values(after)


def _values(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the one row of a batch."""
    return {
        name: display_text(column, 0)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def unknown_table(table_id: int) -> str:
    """Return what a table without a known definition is called."""
    return f"table id {table_id}"
