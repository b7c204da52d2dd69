"""The judge of the lake: replays its files into a model of the tables, and compares that with a
recording's snapshot.

Only pyarrow reads here, and values are compared as the snapshot's text says them; nothing is shared
with what wrote the lake.
"""

from __future__ import annotations

import gzip
import json
import re
import urllib.parse
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_OWN = ("_op", "_commit_ts", "_commit_time", "_start_ts", "_pos", "_exact")


class ReplayedLake:
    """What the lake below a folder says the tables hold as of a commit timestamp."""

    def __init__(self, archive: Path, recording: Path, label: str) -> None:
        self._snapshot = recording / "snapshots" / label
        listed = json.loads((recording / "snapshots.json").read_text())
        self._ts = next(entry["ts"] for entry in listed if entry["label"] == label)
        self.tables: list[str] = next(
            list(entry["tables"]) for entry in listed if entry["label"] == label
        )
        self._ids: dict[str, int] = {}
        self._keys = {}
        for entry in listed:
            self._keys |= _primary_keys(recording / "snapshots" / entry["label"] / "schema.sql")
        self.contradictions: list[str] = []
        """Old values that aren't what the row was before."""
        self._rows: dict[int, dict[Any, dict[str, Any]]] = {}
        self._written: list[dict[str, Any]] = []
        changes: list[tuple[tuple[int, int, int], int, str, dict[str, Any]]] = []
        for document in sorted(archive.glob("lake-versions/*/*.json")):
            version = json.loads(document.read_text())
            name = f"{version['schema']}.{version['table']}"
            folder = (
                archive
                / "lake"
                / document.parent.name
                / f"schema_version={version['schema_version']}"
            )
            for file in sorted(folder.glob("day=*/*.parquet")):
                for row in pq.ParquetFile(file).read().to_pylist():
                    if row["_commit_ts"] <= self._ts:
                        self._check_own(row, file)
                        place = (row["_commit_ts"], row["_pos"], row["_op"] == "update_postimage")
                        changes.append((place, version["table_id"], name, row))
        changes.sort(key=lambda change: change[0])
        for _, table_id, name, row in changes:
            self._ids[name] = table_id
            self._replay(table_id, name, row)

    def _check_own(self, row: dict[str, Any], file: Path) -> None:
        moment = datetime.fromtimestamp((row["_commit_ts"] >> 18) / 1000, UTC)
        if row["_commit_time"] != moment or f"day={moment:%Y-%m-%d}" != file.parent.name:
            self.contradictions.append(
                f"{file}: {row['_commit_ts']} isn't at {row['_commit_time']}"
            )
        if not 0 < row["_start_ts"] < row["_commit_ts"]:
            self.contradictions.append(f"{file}: {row['_commit_ts']} began at {row['_start_ts']}")

    def _replay(self, table_id: int, name: str, row: dict[str, Any]) -> None:
        rows = self._rows.setdefault(table_id, {})
        values = {column: value for column, value in row.items() if column not in _OWN}
        values["_exact"] = dict(row["_exact"] or [])
        keys = self._keys.get(name.lower(), ())
        # Names of columns in a key may have changed: then rows are told apart by all they hold.
        if not keys or not all(column in values for column in keys):
            keys = ("_tidb_rowid",) if values.get("_tidb_rowid") is not None else tuple(values)
        key = tuple(repr(values.get(column)) for column in keys)
        if row["_op"] in ("insert", "update_postimage"):
            rows[key] = values
            self._written.append(values)
            return
        before = rows.pop(key, None)
        if before is None or any(
            _held(before, c) != _held(values, c) for c in before.keys() & values.keys()
        ):
            self.contradictions.append(f"{name} at {row['_commit_ts']}: {values}, it was {before}")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of a table by its name."""
        return list(self._rows.get(self._ids.get(table, 0), {}).values())

    def differences(self, table: str) -> list[str]:
        """What isn't as in the snapshot, of the columns that the lake has."""
        names, expected = _snapshot_rows(self._snapshot, table)
        rows = self.rows(table)
        if len(rows) != len(expected):
            return [f"{table}: {len(rows)} rows, {len(expected)} expected"]
        lake_names = {name: _lake_name(name) for name in names}
        shown = [name for name in names if all(lake_names[name] in row for row in rows)]
        found = []
        left = list(expected)
        for row in rows:
            for number, other in enumerate(left):
                if all(_same(row, lake_names[name], other[names.index(name)]) for name in shown):
                    del left[number]
                    break
            else:
                found.append(f"{table}: {row} isn't in the snapshot; there are {left[:3]}")
        return found

    def never_written(self, table: str) -> list[list[Any]]:
        """Rows of the snapshot that no change has written as they are, into whichever table: for
        tables whose rows a DDL has moved.
        """
        names, expected = _snapshot_rows(self._snapshot, table)
        columns = [_lake_name(name) for name in names]
        written = {
            tuple(None if image[c] is None else str(image[c]) for c in columns)
            for image in self._written
            if image.keys() >= set(columns)
        }
        return [row for row in expected if tuple(row) not in written]

    def not_shown(self, table: str) -> set[str]:
        """Columns of the snapshot that some rows of the lake don't have."""
        names, _ = _snapshot_rows(self._snapshot, table)
        return {
            name for name in names if not all(_lake_name(name) in row for row in self.rows(table))
        }


def _held(values: dict[str, Any], column: str) -> Any:
    return None if column == "_exact" else (values[column], values["_exact"].get(column))


def _lake_name(name: str) -> str:
    return (
        f"_{name}"
        if name.lstrip("_").lower() in ("day", "schema_version") or name in _OWN
        else name
    )


def _same(row: dict[str, Any], name: str, text: Any) -> bool:
    value = row[name]
    if name in row["_exact"]:
        exact = row["_exact"][name]
        return value is None and exact == (text["hex"] if isinstance(text, dict) else text)
    if value is None or text is None:
        return value is text
    if isinstance(text, dict):
        raw = bytes.fromhex(text["hex"])
        if isinstance(value, int | Decimal):
            return int(value) == int.from_bytes(raw, "big")
        return raw == (value if isinstance(value, bytes) else value.encode())
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        # FLOATs are printed so
        return value == float(text) or f"{value:.6g}" == f"{float(text):.6g}"
    if isinstance(value, int):
        return value == int(text)
    if isinstance(value, Decimal):
        return value == Decimal(text) and -value.as_tuple().exponent == len(text.partition(".")[2])
    if isinstance(value, datetime):
        return value.replace(tzinfo=None) == datetime.fromisoformat(text)
    if isinstance(value, date):
        return value == date.fromisoformat(text)
    return (value if isinstance(value, bytes) else value.encode()) == text.encode()


def _snapshot_rows(folder: Path, table: str) -> tuple[list[str], list[list[Any]]]:
    path = folder / f"{urllib.parse.quote(table, safe='._-')}.jsonl"
    text = (
        path.read_text()
        if path.exists()
        else gzip.decompress(path.with_suffix(".jsonl.gz").read_bytes()).decode()
    )
    head, *lines = text.splitlines()
    return json.loads(head)["columns"], [json.loads(line) for line in lines]


def _primary_keys(schema_sql: Path) -> dict[str, tuple[str, ...]]:
    """Columns of the clustered primary key, or of any in a partitioned table, by table in lower
    case.
    """
    found = {}
    for name, text in re.findall(
        r"^-- ([^\n]*)\n(CREATE .*?)(?=^-- |\Z)", schema_sql.read_text(), re.S | re.M
    ):
        match = re.search(r"^  PRIMARY KEY \((.*?)\)( /\*.*)?,?$", text, re.M)
        if match and ("NONCLUSTERED" not in (match[2] or "") or "PARTITION BY" in text):
            found[name.lower()] = tuple(
                c.replace("``", "`") for c in re.findall(r"`((?:[^`]|``)*)`", match[1])
            )
    return found
