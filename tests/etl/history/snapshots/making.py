"""Snapshots made in a test's process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from threading import Lock
from typing import Any

from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.sources import open_source
from sluice.etl.history.snapshots.chunk_writer import MakeFiles, write_snapshot_chunk
from sluice.etl.history.snapshots.request import DOWNSTREAM, SnapshotJobSummary, SnapshotRequest
from sluice.etl.history.snapshots.run import create_snapshot, run_snapshot
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, ArchiveSnapshot
from sluice.relay.jobs import Job, Runner
from sluice.tidb.schema import Table
from tests.etl.history.snapshots.recorded_rows import counted


def here(settings: Settings, job: Job, then: Callable[[int], None] = lambda _: None) -> MakeFiles:
    """As Spark's workers write; `then` is called with how many orders were begun before."""
    plan = job.plan()
    assert plan is not None
    source, storage = open_source(plan["spec"]), Archive.open(settings.archive_url).storage
    # Two groups are written at a time: each order takes a number of its own.
    number, taking = count(), Lock()

    def make(orders: Sequence[str]) -> list[str]:
        said = []
        for order in orders:
            with taking:
                begun = next(number)
            then(begun)
            said.append(write_snapshot_chunk(source, storage, json.loads(order)))
        return said

    return make


def made(settings: Settings, wish: SnapshotRequest) -> tuple[SnapshotJobSummary, ArchiveSnapshot]:
    """Make a snapshot; how that went, and the snapshot."""
    job = create_snapshot(settings, wish, "test")
    make = None if (job.plan() or {})["spec"] == {"kind": DOWNSTREAM} else here(settings, job)
    summary = run_snapshot(settings, job.id, Runner("test"), make=make)
    return summary, Archive.open(settings.archive_url).snapshots.get(summary.snapshot)


def rows_of(settings: Settings, snapshot: ArchiveSnapshot, name: str) -> Counter[tuple[Any, ...]]:
    """A table's rows, text as its bytes."""
    source = SnapshotSource.from_snapshot(settings.archive_url, snapshot)
    table = Table.from_json(next(one.table for one in snapshot.tables if one.full_name == name))
    found: Counter[tuple[Any, ...]] = Counter()
    for chunk in source.chunks(table):
        for batch in source.read(chunk, table):
            found += counted(batch)
    return found
