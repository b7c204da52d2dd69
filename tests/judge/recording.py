"""Writes what an `Upstream` sent as a recording, the way recordings of real clusters are kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.etl.relay_from_recording import ROW_WRITES
from tests.judge import wire
from tests.judge.invented_tidb import Upstream

CLUSTER_ID = 7_710_000_000_000_000_007


def write(upstream: Upstream, folder: Path) -> None:
    """Write binlogs, TiKV's meta keys, row writes and recording.json to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "binlogs.bin.gz", "wb", compresslevel=1) as file:
        for payload in upstream.binlogs:
            file.write(wire.uvarint(len(payload)) + payload)
    with gzip.open(folder / "tikv-meta.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as lines:
        for key, value in _meta(upstream):
            lines.write(json.dumps({"key": key.hex(), "value": value.hex()}) + "\n")
    with gzip.open(folder / ROW_WRITES, "wt", encoding="utf-8", compresslevel=1) as lines:
        for row, writes in upstream.writes.items():
            lines.write(
                json.dumps(
                    {
                        "key": row.hex(),
                        "writes": [(w.kind, w.start_ts, w.commit_ts) for w in writes],
                    }
                )
                + "\n"
            )
    count = len(upstream.binlogs) // 2
    about = {
        "name": folder.name,
        "cluster_id": CLUSTER_ID,
        "prewrite": count,
        "commit": count,
        "rollback": 0,
        "dropped": [],
        "new_collation_enabled": upstream.new_collation,
        "versions": list(upstream.since.items()),
    }
    (folder / "recording.json").write_text(json.dumps(about))
    (folder / "snapshots.json").write_text("[]")


def _meta(upstream: Upstream) -> Iterator[tuple[bytes, bytes]]:
    """TiDB's meta keys as they are in the end: the job history, what each schema version was about,
    the tables.
    """
    for job in upstream.jobs:
        yield (
            _key("DDLJobHistory", "h") + wire.memcomparable(job["id"].to_bytes(8, "big")),
            _json(job),
        )
    for version, diff in upstream.diffs.items():
        yield _key(f"Diff:{version}", "s"), _json(diff)
    yield _key("SchemaVersionKey", "s"), str(upstream.version).encode()
    for table in (*upstream.tables.values(), *upstream.merged):
        yield (
            _key(f"DB:{table.schema_id}", "h") + wire.memcomparable(f"Table:{table.id}".encode()),
            _json(table.info()),
        )


def _key(name: str, kind: str) -> bytes:
    return b"m" + wire.memcomparable(name.encode()) + ord(kind).to_bytes(8, "big")


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
