"""Writes what an `Upstream` sent as a recording, the way recordings of real clusters are kept."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.judge import wire
from tests.judge.upstream import Upstream

CLUSTER_ID = 7_710_000_000_000_000_007


def write(upstream: Upstream, folder: Path) -> None:
    """binlogs.bin.gz, tikv-meta.jsonl.gz and recording.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "binlogs.bin.gz", "wb", compresslevel=1) as file:
        for payload in upstream.binlogs:
            file.write(wire.uvarint(len(payload)) + payload)
    with gzip.open(folder / "tikv-meta.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as lines:
        for job in upstream.jobs:
            key = b"m" + wire.memcomparable(b"DDLJobHistory") + ord("h").to_bytes(8, "big") + wire.memcomparable(job["id"].to_bytes(8, "big"))
            value = json.dumps(job, ensure_ascii=False).encode()
            lines.write(json.dumps({"key": key.hex(), "value": value.hex()}) + "\n")
    count = len(upstream.binlogs) // 2
    about = {"name": folder.name, "cluster_id": CLUSTER_ID, "prewrite": count, "commit": count, "rollback": 0, "dropped": []}
    (folder / "recording.json").write_text(json.dumps(about))
