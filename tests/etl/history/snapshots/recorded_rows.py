"""What a recording's cluster held at a snapshot: definitions, and rows in the types and texts of
decoded ones.
"""

from __future__ import annotations

import gzip
import json
import urllib.parse
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.etl.copy._values import typed_array
from sluice.etl.copy.definitions import SourceSchema
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Table
from tests.etl.relay_from_recording import jobs


def recorded_snapshot(recording: Path, label: str) -> dict[str, Any]:
    listed = json.loads((recording / "snapshots.json").read_text())
    return next(one for one in listed if one["label"] == label)


def definitions(recording: Path, ts: int) -> SourceSchema:
    found = [DdlHistoryJob.from_json(raw) for raw in jobs(recording).values()]
    history = SchemaHistory.from_jobs(job for job in found if job.finished_ts <= ts)
    return SourceSchema.from_history(history, ts).of_users()


def recorded_rows(recording: Path, label: str, table: Table) -> Counter[tuple[Any, ...]]:
    """The rows of a table in its writable columns' order."""
    path = (
        recording / "snapshots" / label / f"{urllib.parse.quote(table.full_name, safe='._-')}.jsonl"
    )
    raw = (
        path.read_bytes()
        if path.exists()
        else gzip.decompress(path.with_suffix(".jsonl.gz").read_bytes())
    )
    head, *lines = raw.decode().splitlines()
    place = {name.lower(): number for number, name in enumerate(json.loads(head)["columns"])}
    rows = [json.loads(line) for line in lines]
    arrays = [
        typed_array(column, _column([row[place[column.name.lower()]] for row in rows]))
        for column in table.writable_columns
    ]
    return counted(
        pa.RecordBatch.from_arrays(arrays, [column.name for column in table.writable_columns])
    )


def counted(batch: pa.RecordBatch | pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows, text as its bytes: it need not be utf-8."""
    columns = [
        (
            column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column
        ).to_pylist()
        for column in batch.columns
    ]
    return Counter(zip(*columns, strict=True))


def _column(values: list[Any]) -> pa.LargeBinaryArray:
    made = [
        None
        if value is None
        else bytes.fromhex(value["hex"])
        if isinstance(value, dict)
        else str(value).encode()
        for value in values
    ]
    array = pa.array(made, pa.large_binary())
    validity, offsets, data = array.buffers()
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(array),
        [validity, offsets, data if data is not None else pa.py_buffer(b"")],
    )
