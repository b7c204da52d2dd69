"""Show a landed window to people: counts by table, DDL statements, decoded row changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import RequestError
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.row_change import KINDS, RowChange, decode, unknown_table
from sluice.relay import RelayLog, WindowRecord
from sluice.tidb.folded import folded
from sluice.tidb.table_name import exactly, fits
from sluice.tidb.tso import to_datetime

_DDL_FIELDS_SHOWN = (
    "commit_ts",
    "job_id",
    "type",
    "schema_version",
    "schema_name",
    "table_name",
    "query",
)


class NotLandedError(RequestError, ValueError):
    """The timestamp is in no landed window; the message names the range that is landed."""


def find_window(relay: RelayLog, ts: int) -> tuple[WindowRecord, bool]:
    """Return the window that holds the transaction committed at `ts`, and True.

    Else the one that begins at, or reaches over, `ts`, and False. Raises NotLandedError.
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
    raise NotLandedError(
        f"{relay.url} holds no window at {ts}: it reaches from {first.lo} to {last.hi}"
    )


def latest_windows(relay: RelayLog, count: int) -> list[WindowRecord]:
    """Return the last `count` windows, ascending."""
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


def commits(relay: RelayLog, window: WindowRecord) -> set[int]:
    """Return the commit timestamps of all transactions of a window.

    Those with changes, DDL, and those that landing left out.
    """
    found = set(np.unique(relay.read([window])["commit_ts"].to_numpy()).tolist())
    found |= {ddl.commit_ts for ddl in RecordedSchema.from_window(window).ddls}
    return found | {int(entry["commit_ts"]) for entry in window.skipped}


def committed_at(relay: RelayLog, window: WindowRecord, commit_ts: int) -> dict[int, str]:
    """Return by start_ts whether it is ``rows`` or ``ddl``, for all that was committed at once."""
    changes = relay.read([window])
    mine = changes.filter(pa.array(changes["commit_ts"].to_numpy() == commit_ts))
    found = dict.fromkeys(mine["start_ts"].unique().to_pylist(), "rows")
    found |= {
        int(entry["start_ts"]): "rows"
        for entry in window.skipped
        if int(entry["commit_ts"]) == commit_ts
    }
    ddls = RecordedSchema.from_window(window).ddls
    return found | {ddl.start_ts: "ddl" for ddl in ddls if ddl.commit_ts == commit_ts}


def describe(relay: RelayLog, window: WindowRecord) -> dict[str, Any]:
    """Return a window as JSON values: bounds, times, parts, DDL, and changes by table and kind."""
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
        "ddls": [
            {name: getattr(ddl, name) for name in _DDL_FIELDS_SHOWN}
            for ddl in RecordedSchema.from_window(window).ddls
        ],
        "skipped": [dict(entry) for entry in window.skipped],
        "tables": _count_tables(relay, window),
    }


def _count_tables(relay: RelayLog, window: WindowRecord) -> list[dict[str, Any]]:
    changes = relay.read([window])
    tables = SchemaTimeline.from_window(window)
    counts: dict[str, dict[str, Any]] = {}
    ids, kinds, commit_ts, start_ts = (
        changes[name].to_numpy() for name in ("table_id", "kind", "commit_ts", "start_ts")
    )
    for table_id in np.unique(ids).tolist():
        mine = np.flatnonzero(ids == table_id)
        table = tables.reads(table_id, int(commit_ts[mine[-1]]))
        name = table.full_name if table else unknown_table(table_id)
        entry = counts.setdefault(
            name, {"table": name, "transactions": 0, **dict.fromkeys(KINDS.values(), 0)}
        )
        entry["transactions"] += len(
            np.unique(np.stack((commit_ts[mine], start_ts[mine])), axis=1).T
        )
        for kind, word in KINDS.items():
            entry[word] += int(np.count_nonzero(kinds[mine] == kind))
    return sorted(counts.values(), key=lambda entry: str(entry["table"]))


def row_changes(
    relay: RelayLog, window: WindowRecord, table: str | None = None, commit_ts: int | None = None
) -> Iterator[RowChange]:
    """Yield the row changes of a window in order.

    Only those of `table` (``schema.table``), or of the transaction at `commit_ts`. A row that can't
    be decoded comes with its fault.
    """
    tables = SchemaTimeline.from_window(window)
    changes = relay.read([window])
    if commit_ts is not None:
        changes = changes.filter(pa.array(changes["commit_ts"].to_numpy() == commit_ts))
    for batch in changes.to_batches():
        for raw in batch.to_pylist():
            found = tables.reads(raw["table_id"], raw["commit_ts"])
            name = found.full_name if found else unknown_table(raw["table_id"])
            if table is None or fits(folded(name), folded(exactly(table))):
                yield decode(raw, found)
