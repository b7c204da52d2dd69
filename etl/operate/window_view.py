"""What is in a landed window, for people: counts by table, DDL statements, row changes decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from errors import RequestError
from etl.formats.sql_text import shown
from etl.recorded_schema import RecordedSchema, TablesAt
from relay import DELETE, INSERT, UPDATE, RelayLog, Window
from upstream.folded import folded
from upstream.rows import ROWID_NAME, decode_deletes, decode_inserts, decode_updates
from upstream.schema import Table
from upstream.table_name import exactly, fits
from upstream.tso import to_datetime

_KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_SHOWN_BYTES = 64
_SHOWN_OF_DDL = ("commit_ts", "job_id", "type", "schema_version", "schema_name", "table_name", "query")


class NotLandedError(RequestError, ValueError):
    """No landed window holds what was asked for; says what is landed."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change. `key`, `old` and `new` hold values by column name, None where the kind has none; `others`: the
    values of further unique keys; `fault` says why the row can't be decoded.
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


def find_window(relay: RelayLog, ts: int) -> tuple[Window, bool]:
    """The window that holds the transaction committed at `ts`, and True; else the one that begins at, or reaches over,
    `ts`, and False. Raises NotLandedError.
    """
    window = relay.find(ts - 1)
    if window is not None and window.lo < ts and ts in commits(relay, window):
        return window, True
    starts = relay.next(ts)
    if starts is not None:
        return starts, False
    if window is not None and window.lo < ts:
        return window, False
    first, last = relay.first(), relay.last()
    if first is None or last is None:
        raise NotLandedError(f"{relay.url} holds no window yet")
    raise NotLandedError(f"{relay.url} holds no window at {ts}: it reaches from {first.lo} to {last.hi}")


def newest(relay: RelayLog, count: int) -> list[Window]:
    """The last `count` windows, ascending."""
    first, last = relay.first(), relay.last()
    if first is None or last is None:
        return []
    windows = [last]
    while len(windows) < count and windows[0].lo > first.lo:
        before = relay.find(windows[0].lo - 1)
        if before is None or before.hi != windows[0].lo:
            break
        windows.insert(0, before)
    return windows


def commits(relay: RelayLog, window: Window) -> set[int]:
    """The commit timestamps of all transactions of a window: those with changes, DDL, and those that
    landing left out.
    """
    found = set(np.unique(relay.read([window])["commit_ts"].to_numpy()).tolist())
    found |= {ddl.commit_ts for ddl in RecordedSchema.of(window).ddls}
    return found | {int(entry["commit_ts"]) for entry in window.skipped}


def describe(relay: RelayLog, window: Window) -> dict[str, Any]:
    """A window as JSON values: bounds and their times, parts, DDL, and changes by table and kind."""
    return {
        "lo": window.lo,
        "hi": window.hi,
        "from": to_datetime(window.lo).isoformat(timespec="milliseconds"),
        "to": to_datetime(window.hi).isoformat(timespec="milliseconds"),
        "landed_ms": window.landed_ms,
        "transactions": window.transactions,
        "changes": window.changes,
        "schema_version": window.schema_version,
        "record": window.path,
        "parts": [part.to_dict() for part in window.parts],
        "ddls": [{name: getattr(ddl, name) for name in _SHOWN_OF_DDL} for ddl in RecordedSchema.of(window).ddls],
        "skipped": [dict(entry) for entry in window.skipped],
        "tables": _count_tables(relay, window),
    }


def _count_tables(relay: RelayLog, window: Window) -> list[dict[str, Any]]:
    changes = relay.read([window])
    tables = TablesAt.of(window)
    counts: dict[str, dict[str, Any]] = {}
    ids, kinds, commit_ts = (changes[name].to_numpy() for name in ("table_id", "kind", "commit_ts"))
    for table_id in np.unique(ids).tolist():
        mine = np.flatnonzero(ids == table_id)
        table = tables.reads(table_id, int(commit_ts[mine[-1]]))
        name = table.full_name if table else _unknown(table_id)
        entry = counts.setdefault(name, {"table": name, "transactions": 0, **dict.fromkeys(_KINDS.values(), 0)})
        entry["transactions"] += len(np.unique(commit_ts[mine]))
        for kind, word in _KINDS.items():
            entry[word] += int(np.count_nonzero(kinds[mine] == kind))
    return sorted(counts.values(), key=lambda entry: str(entry["table"]))


def row_changes(
    relay: RelayLog, window: Window, table: str | None = None, commit_ts: int | None = None
) -> Iterator[RowChange]:
    """The row changes of a window in order; only those of `table` (``schema.table``), or of the transaction at
    `commit_ts`. A row that can't be decoded comes with its fault.
    """
    tables = TablesAt.of(window)
    changes = relay.read([window])
    if commit_ts is not None:
        changes = changes.filter(pa.array(changes["commit_ts"].to_numpy() == commit_ts))
    for batch in changes.to_batches():
        for raw in batch.to_pylist():
            found = tables.reads(raw["table_id"], raw["commit_ts"])
            name = found.full_name if found else _unknown(raw["table_id"])
            if table is None or fits(folded(name), folded(exactly(table))):
                yield decode(raw, found)


def decode(raw: Mapping[str, Any], table: Table | None) -> RowChange:
    """A row of PART_SCHEMA as a RowChange."""
    kind = int(raw["kind"])
    old = new = None
    fault = "" if table else "the window doesn't describe this table"
    if table is not None:
        try:
            old, new = _images(table, kind, raw["row"])
        except ValueError as error:
            shown = raw["row"][:_SHOWN_BYTES].hex() + ("…" if len(raw["row"]) > _SHOWN_BYTES else "")
            fault = f"{error}; {len(raw['row'])} bytes: {shown}"
    image = old or new or {}
    names = key_columns(table) if table else ()
    further = [name for key in (table.unique_keys() if table else []) for name in key if name not in names]
    return RowChange(
        raw["commit_ts"], raw["start_ts"], raw["position"], table.full_name if table else _unknown(raw["table_id"]),
        _KINDS.get(kind, f"kind {kind}"), {name: image[name] for name in names if name in image}, old, new, fault,
        {name: (new or image)[name] for name in further if name in image},
    )  # fmt: skip


def key_columns(table: Table) -> tuple[str, ...]:
    """What rows of a table are known by: the primary key, else the first unique key, else TiDB's hidden row id."""
    keys = table.unique_keys()
    return tuple(keys[0]) if keys else (ROWID_NAME,)


def _images(table: Table, kind: int, row: bytes) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    rows = pa.array([row], pa.large_binary())
    if kind == INSERT:
        return None, _values(decode_inserts(table, rows))
    if kind == DELETE:
        return _values(decode_deletes(table, rows)), None
    before, after = decode_updates(table, rows)
    return _values(before), _values(after)


def _values(batch: pa.RecordBatch) -> dict[str, Any]:
    """The one row of a batch."""
    return {name: shown(column, 0) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _unknown(table_id: int) -> str:
    return f"table id {table_id}"
