"""Tables as of a moment computed in this process, and compared with a recording's snapshots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.devstack.compare import _meaning, _raw, snapshot_rows
from sluice.etl.copy.source import SourceChunk, TableEstimate
from sluice.etl.history.as_of.aggregations import CollectRows, from_ipc
from sluice.etl.history.as_of.by_spark import run_locally
from sluice.etl.history.as_of.query_planner import plan_query
from sluice.etl.history.as_of.read_planner import GroupBuckets, SnapshotStart, TimeTravelPlan
from sluice.etl.history.as_of.versions import TableVersion
from sluice.relay import WindowLog
from sluice.tidb.codec.float import format_float
from sluice.tidb.schema import Column, Table


class EmptyBase:
    """A snapshot whose tables are empty."""

    position = 0

    def describe(self) -> str:
        return "nothing"

    def spec(self) -> dict[str, Any]:
        return {"kind": "empty"}

    def tables(self) -> list[TableEstimate]:
        return []

    def check_schema(self, table: Table) -> None: ...

    def chunks(self, table: Table) -> list[SourceChunk]:
        return []

    def brings(self, table: Table) -> frozenset[str]:
        return frozenset(column.name for column in table.stored_columns if column.generated)

    def read(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
        raise AssertionError(chunk)


def empty_start(log: WindowLog, tables: Sequence[Table]) -> SnapshotStart:
    """A snapshot at the log's beginning, at which these tables are empty."""
    first = log.first()
    assert first is not None
    return SnapshotStart(first.lo, {table.id: table for table in tables}, EmptyBase())


def with_buckets(plan: TimeTravelPlan, least: int) -> TimeTravelPlan:
    """The plan with at least `least` buckets a group, where rows can be distributed."""
    first, found = 0, []
    for one in plan.families:
        count = max(one.count, least) if one.family.is_partitioned else 1
        found.append(GroupBuckets(one.family, first, count))
        first += count
    return replace(plan, families=tuple(found))


def rows_as_of(
    log: WindowLog,
    ts: int,
    names: Sequence[str],
    starts: Sequence[SnapshotStart] = (),
    buckets: int = 2,
) -> dict[str, pa.Table]:
    """The rows of tables by name."""
    return {name: rows for name, (_, rows) in asked_for(log, ts, names, starts, buckets).items()}


def asked_for(
    log: WindowLog,
    ts: int,
    names: Sequence[str],
    starts: Sequence[SnapshotStart] = (),
    buckets: int = 2,
) -> dict[str, tuple[TableVersion, pa.Table]]:
    """The rows of tables by name, each with what its columns are."""
    asked = plan_query(log, starts, [ts], names)
    batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in asked.tables[ts]}
    for plan in asked.plans:
        for result in run_locally(with_buckets(plan, buckets), CollectRows()):
            batches[result.name] += from_ipc(result.payload)
    return {
        name: (version, _table(version, batches[name]))
        for name, version in asked.versions[ts].items()
    }


def _table(version: TableVersion, batches: list[pa.RecordBatch]) -> pa.Table:
    from sluice.etl.history.as_of.advance import schema

    return pa.Table.from_batches(batches, schema(version.columns))


def plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as Python values, sorted."""
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


def labels(recording: Path) -> Mapping[str, Mapping[str, Any]]:
    """The snapshots of a recording, by label."""
    return {one["label"]: one for one in json.loads((recording / "snapshots.json").read_text())}


def snapshot_differences(
    recording: Path, label: str, found: Mapping[str, tuple[TableVersion, pa.Table]]
) -> list[str]:
    """One line a table that isn't as in the snapshot.

    Columns that a database computes itself don't count.
    """
    by_name = {name.lower(): pair for name, pair in found.items()}
    told = []
    for full in labels(recording)[label]["tables"]:
        if full.lower() not in by_name:
            continue
        version, rows = by_name[full.lower()]
        lines = snapshot_rows(recording / "snapshots" / label, full)
        names = [name.lower() for name in next(lines)["columns"]]
        columns = {column.name.lower(): column for column in version.columns}
        generated = {column.name.lower() for column in version.table.columns if column.generated}
        if set(names) - generated != set(columns) - generated:
            told.append(f"{full}: columns {sorted(columns)}, {names} expected")
            continue
        use = [(names.index(name), column) for name, column in columns.items()]
        want = Counter(tuple(_meant(column, line[at]) for at, column in use) for line in lines)
        got = Counter(
            zip(*([_value(c, v) for v in _listed(rows[c.name])] for _, c in use), strict=True)
        )
        if got != want:
            told.append(
                f"{full}: missing {list((want - got).items())[:3]}, too many"
                f" {list((got - want).items())[:3]}"
            )
    return told


def _listed(values: pa.ChunkedArray) -> list[Any]:
    return (
        values.cast(pa.large_binary()) if pa.types.is_large_string(values.type) else values
    ).to_pylist()


def _meant(column: Column, value: Any) -> Any:
    return None if value is None else _meaning(column.kind)(_raw(value))


def _value(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind == "bit":
        return int(value).to_bytes(8, "big").lstrip(b"\0")
    if column.kind == "year":
        return b"%04d" % value
    shown = format_float(value) if column.kind == "float" else value
    return _meaning(column.kind)(shown if isinstance(shown, bytes) else str(shown).encode())
