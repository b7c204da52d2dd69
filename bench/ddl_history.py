"""How long landing takes to know the schema when it begins, by how many DDL jobs TiDB has ever had.

    python -m sluice.bench.ddl_history [--jobs 1000 --jobs 10000 --jobs 100000] [--tables 1000]

The jobs, of tables with the columns of a recorded one, are in the stand-in cluster's TiKV and come
by gRPC. For each number of jobs: once from all of them, and once from the schema that was kept
then. Seconds by the clock, in which the stand-in's own are, and of CPU time; MiB at most.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sluice.devstack import Stack
from sluice.devstack.recording import Recording
from sluice.devstack.repository import recording_folder
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import InitialSchema
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.relay.storage import open_storage
from sluice.tidb import PDClient, TiKVClient
from sluice.tidb.ddl_actions import Action
from sluice.tidb.tikv.meta import hash_prefix, history_job_key, string_key

_RECORDING = "tests/recordings/shop"
_FIRST_ID = 1_000_000


@click.command()
@click.option(
    "--jobs", "sizes", multiple=True, type=int, default=(1_000, 10_000, 100_000), show_default=True
)
@click.option(
    "--tables", default=1_000, show_default=True, help="How many tables the jobs are about."
)
def main(sizes: tuple[int, ...], tables: int) -> None:
    """Print the starts of each size."""
    for size in sizes:
        click.echo(f"{size:>8,} jobs, {tables:,} tables")
        for what, figure in measure(size, tables).items():
            click.echo(f"  {what:<24}{figure:8.2f}")


def measure(size: int, tables: int) -> dict[str, float]:
    """Return what both starts take with `size` jobs, by name and unit."""
    with tempfile.TemporaryDirectory(prefix="sluice-history-") as home:
        recording = Path(home, "recording")
        version = _write(recording, size, tables)
        stack = Stack(Path(home, "stack"))
        try:
            stack.up(["etcd", "cluster"], recording=recording, report=lambda line: None)
            url = f"http://127.0.0.1:{stack.site().ports['cluster']}"
            whole = _in_process(url, version, Path(home, "relay").as_uri())
            snapshot = _in_process(url, version, Path(home, "relay").as_uri())
        finally:
            stack.down()
    return {
        f"{what}, {unit}": figure
        for what, of in (("all jobs", whole), ("kept", snapshot))
        for unit, figure in of
    }


def _in_process(url: str, version: int, relay: str) -> list[tuple[str, float]]:
    """Measure in a process of its own, so that the memory is that start's."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_begin, args=(url, version, relay, theirs))
    process.start()
    theirs.close()
    found: list[tuple[str, float]] = ours.recv()
    process.join()
    return found


def _begin(url: str, version: int, relay: str, into: Any) -> None:
    snapshots = SchemaSnapshots(open_storage(relay))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with PDClient([url]) as pd, TiKVClient(pd, timeout_s=120) as tikv:
        began, cpu = time.perf_counter(), time.process_time()
        LandingSchema.load(pd, tikv, InitialSchema(version, None, snapshots), "true")
        took, used = time.perf_counter() - began, time.process_time() - cpu
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    into.send([("s", took), ("CPU s", used), ("MiB more", more)])


def _write(folder: Path, size: int, tables: int) -> int:
    """Write a recording without transactions; return the schema version that it ends with."""
    folder.mkdir()
    about = {
        "name": "history",
        "cluster_id": 7_710_000_000_000_000_001,
        "dropped": [],
        "new_collation_enabled": True,
    }
    (folder / "recording.json").write_text(
        json.dumps(about | dict.fromkeys(("prewrite", "commit", "rollback"), 0))
    )
    (folder / "snapshots.json").write_text("[]")
    gzip.open(folder / "binlogs.bin.gz", "wb").close()
    with gzip.open(folder / "tikv-meta.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as lines:
        for job in _jobs(size, tables):
            pair = {
                "key": history_job_key(job["id"]).hex(),
                "value": json.dumps(job).encode().hex(),
            }
            lines.write(json.dumps(pair) + "\n")
        pair = {"key": string_key("NextGlobalID").hex(), "value": str(2 * _FIRST_ID).encode().hex()}
        lines.write(json.dumps(pair) + "\n")
    return size


def _jobs(size: int, tables: int) -> Iterator[dict[str, Any]]:
    """Return jobs that create each table, and then add a column to one again and again."""
    model = _recorded_job()
    info = model["binlog"]["TableInfo"]
    yield model | {
        "id": _FIRST_ID - 1,
        "type": int(Action.CREATE_SCHEMA),
        "binlog": {
            "SchemaVersion": 1,
            "FinishedTS": 1,
            "DBInfo": {"id": 1_000, "db_name": {"O": "h", "L": "h"}},
        },
    }
    for number in range(size - 1):
        table_id = _FIRST_ID // 2 + number % tables
        name = f"t{number % tables}"
        binlog = model["binlog"] | {
            "SchemaVersion": number + 2,
            "FinishedTS": number + 2,
            "TableInfo": info | {"id": table_id, "name": {"O": name, "L": name}},
        }
        kind = Action.CREATE_TABLE if number < tables else Action.ADD_COLUMN
        yield model | {
            "id": _FIRST_ID + number,
            "type": int(kind),
            "schema_id": 1_000,
            "table_id": table_id,
            "binlog": binlog,
        }


def _recorded_job() -> dict[str, Any]:
    """Return a recorded CREATE TABLE of middling size."""
    prefix = hash_prefix("DDLJobHistory")
    jobs = [
        json.loads(value)
        for key, value in Recording(recording_folder(_RECORDING)).meta_keys()
        if key.startswith(prefix)
    ]
    creates = [
        job
        for job in jobs
        if job["type"] == Action.CREATE_TABLE and job.get("binlog", {}).get("TableInfo")
    ]
    chosen: dict[str, Any] = sorted(creates, key=lambda job: len(json.dumps(job)))[
        len(creates) * 3 // 4
    ]
    return chosen


if __name__ == "__main__":
    main()
