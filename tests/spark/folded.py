"""Fold changes by key into what a table holds, and compare that with a recording's snapshot.

A model: rows are plain dicts, and nothing is shared with what reads the changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.etl.history.lake.replayed_lake import _primary_keys, _same, _snapshot_rows

Row = Mapping[str, Any]


def snapshot_of(recording: Path, label: str) -> dict[str, Any]:
    """Return the entry of a snapshot: its `ts` and its `tables` with their numbers of rows."""
    listed = json.loads((recording / "snapshots.json").read_text())
    found: dict[str, Any] = next(entry for entry in listed if entry["label"] == label)
    return found


def fold(changes: Iterable[Row], keys: tuple[str, ...]) -> dict[Any, Row]:
    """Return the last row of each key; raises AssertionError where a change doesn't follow."""
    rows: dict[Any, Row] = {}
    for row in sorted(changes, key=_place):
        key = tuple(repr(row[name]) for name in keys)
        if row["_op"] in ("insert", "update_postimage"):
            assert key not in rows, (row["_op"], row)
            rows[key] = row
        else:
            assert key in rows, (row["_op"], row)
            del rows[key]
    return rows


def _place(row: Row) -> tuple[Any, ...]:
    return row["_commit_ts"], row["_start_ts"], row["_pos"], row["_op"] == "update_postimage"


def differences(changes: Iterable[Row], recording: Path, label: str, table: str) -> list[str]:
    """Return what the folded changes hold other than the snapshot, of columns that both have."""
    keys = _primary_keys(recording / "snapshots" / label / "schema.sql").get(table.lower())
    rows = list(fold(changes, keys or ("_tidb_rowid",)).values())
    names, expected = _snapshot_rows(recording / "snapshots" / label, table)
    if len(rows) != len(expected):
        return [f"{len(rows)} rows, {len(expected)} expected"]
    shown = [name for name in names if rows and name in rows[0]]
    plain = [
        name
        for name in shown
        if all(isinstance(row[name], int | str) for row in rows)
        and all(isinstance(other[names.index(name)], str) for other in expected)
    ]
    left: dict[Any, list[Any]] = {}
    for other in expected:
        left.setdefault(tuple(str(other[names.index(n)]) for n in plain), []).append(other)
    found = []
    for row in rows:
        full = {**row, "_exact": dict(row["_exact"] or [])}
        places = left.get(tuple(str(row[n]) for n in plain), [])
        same = [o for o in places if all(_same(full, n, o[names.index(n)]) for n in shown)]
        if same:
            places.remove(same[0])
        else:
            found.append(f"{row} isn't in the snapshot")
    return found
