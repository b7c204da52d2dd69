"""Make a recording of binlogs out of the recordings of TiKV's change data, by way of the capture's
sink.

It has everything that the cluster did, from its first transaction on, and the snapshots of all
recordings.
"""

from __future__ import annotations

import gzip
import json
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.capture.transactions import CapturedTransaction
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import split_key
from tests import recorded_changes
from tests.etl.relay_from_recording import ROW_WRITES
from tests.pump_service.storekit import MemoryStore

LAST = "05-ddl"


def build(folder: Path) -> list[str]:
    """Writes the recording; returns the labels of its snapshots, ascending."""
    folder.mkdir()
    whole = recorded_changes.history_through(
        recorded_changes.checkpoint_ts(LAST)
    ) + recorded_changes.transactions(LAST)
    store = MemoryStore()
    writer = BinlogWriter(store, SchemaTracker((), 0))  # type: ignore[arg-type]
    writer.advance(iter(whole), whole[-1].commit_ts + 1)
    with gzip.open(folder / "binlogs.bin.gz", "wb", compresslevel=1) as file:
        for record in store.records:
            if record.tp != pb.binlog.Prewrite:
                continue
            message = pb.binlog.Binlog.FromString(record.payload)
            for tp, commit_ts in ((pb.binlog.Prewrite, 0), (pb.binlog.Commit, record.commit_ts)):
                message.tp, message.commit_ts = tp, commit_ts
                payload = message.SerializeToString()
                file.write(encode_uvarint(len(payload)) + payload)
                message.ClearField("prewrite_value")
    (folder / "recording.json").write_text(json.dumps({"name": "captured", "cluster_id": 7}))
    _write_keys(folder, whole)
    return _write_snapshots(folder, whole)


def _write_keys(folder: Path, whole: list[CapturedTransaction]) -> None:
    meta: dict[str, str] = {}
    writes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for each in whole:
        for change in each.changes:
            key = change.key.hex()
            if change.key[:1] == b"t":
                writes[key].append((int(change.is_delete), each.start_ts, each.commit_ts))
            elif change.is_delete:
                meta.pop(key, None)
            else:
                meta[key] = change.value.hex()
    with gzip.open(folder / "tikv-meta.jsonl.gz", "wt", compresslevel=1) as file:
        file.writelines(
            json.dumps({"key": key, "value": value}) + "\n" for key, value in sorted(meta.items())
        )
    with gzip.open(folder / ROW_WRITES, "wt", compresslevel=1) as file:
        file.writelines(
            json.dumps({"key": key, "writes": found}) + "\n" for key, found in writes.items()
        )


def _write_snapshots(folder: Path, whole: list[CapturedTransaction]) -> list[str]:
    found = [
        (name, each) for name in recorded_changes.NAMES for each in recorded_changes.snapshots(name)
    ]
    listed: list[dict[str, Any]] = []
    for name, each in sorted(found, key=lambda pair: pair[1].tso):
        label = f"{name} {each.label}"
        own = folder / "snapshots" / label
        own.mkdir(parents=True)
        columns = _columns_at(whole, each.tso)
        for table_id, rows in each.rows.items():
            file = own / f"{urllib.parse.quote(each.names[table_id], safe='._-')}.jsonl"
            lines = [
                {"columns": columns[table_id]},
                *([_as_text(value) for value in row] for row in rows),
            ]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        tables = {full: len(each.rows[table_id]) for table_id, full in each.names.items()}
        listed.append({"label": label, "ts": each.tso, "tables": tables})
    (folder / "snapshots.json").write_text(json.dumps(listed))
    return [each["label"] for each in listed]


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):  # BIT as a number in hex
        return {"hex": value["hex"].zfill(len(value["hex"]) + len(value["hex"]) % 2)}
    return repr(value) if isinstance(value, float | int) else value


def _columns_at(whole: list[CapturedTransaction], tso: int) -> dict[int, list[str]]:
    """The names of each table's columns at a TSO."""
    found: dict[int, list[str]] = {}
    for table_id, value in _table_infos(whole, tso):
        table = Table.from_tidb(json.loads(value), 1, "")
        found[table_id] = [c.name for c in table.columns if c.public and not c.hidden]
    return found


def _table_infos(whole: list[CapturedTransaction], tso: int) -> Iterator[tuple[int, bytes]]:
    for each in whole:
        if each.commit_ts > tso:
            return
        for change in each.changes:
            key = split_key(change.key) if change.key[:1] == b"m" else None
            if (
                key is not None
                and key[0].startswith(b"DB:")
                and key[2].startswith(b"Table:")
                and change.value
            ):
                yield int(key[2][6:]), change.value
