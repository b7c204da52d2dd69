"""Measure how fast tables are restored: the rows of a snapshot, and the changes behind one.

All tables, and one of ten.

etcd, the stand-in cluster, two pumps, MariaDB at its default durability and Spark run; nothing
else. The recording's traffic is landed again and again, each time with other digits in its texts,
and archived; a snapshot with ten tables of random rows (sysbench's shape, a secondary index) is
put behind it. `sluice.etl.restore` restores in this process, to other names on the same server:
the recording's tables from the archive alone, the snapshot's ten tables, one of them. The
recording alone is restored before, which warms Spark up. CPU time is that of every process
meanwhile; on a busy machine that is what to compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from sluice.bench import backlog
from sluice.bench.copy import TABLE
from sluice.bench.land import PATIENCE_S, landed_recording
from sluice.bench.processes import SparkProcesses
from sluice.devstack import Stack, replay
from sluice.devstack.launch import drop_everything
from sluice.etl.copy.snapshot_files import rows_schema, write_files
from sluice.etl.history.archive import archive_through
from sluice.etl.landing import run_land
from sluice.etl.restore import RestoreRequest, create_or_resume, plan_restore, run_restore
from sluice.etl.settings import Settings
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.jobs import Runner
from sluice.tidb.schema import Schema, Table

ROWS, CHANGES = 1_000_000, 1_000_000
_TABLES = 10
_BATCH_ROWS = 50_000
_TEXTS = 1_000


@dataclass(slots=True)
class RestoreResult:
    """One restore. `planned_s`: the plan's estimate; `plan_s`: how long planning took."""

    what: str
    rows: int = 0
    row_bytes: int = 0
    changes: int = 0
    seconds: float = 0.0
    planned_s: float = 0.0
    plan_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)


def measure(
    stack: Stack, directory: Path, rows: int, changes: int, report: Callable[[str], None]
) -> list[RestoreResult]:
    """Return a result for each restore.

    Raises StackError, RecordingError.
    """
    stack.wipe("mariadb")
    with landed_recording(stack, directory, report) as there:
        per_turn = sum(inside for _, inside in there.values)
        values = backlog.again(there.values, -(-changes // per_turn)) or there.values
        written = there.write(values, changes)
        run_land(there.settings, until_ts=written.last, run_seconds=PATIENCE_S)
        archive_through(there.settings)
        stack.up(("mariadb",), report=report)
        # The stand-in TiDB knows nothing of what was written into the pumps.
        settings = replace(there.settings, upstream=replace(there.settings.upstream, sql_host=""))
        end = settings.open_relay().last()
        assert end is not None
        replayed = replay.target(there.recording, None)[1]

        def restored(what: str, request: RestoreRequest) -> RestoreResult:
            report(what)
            return _restore(stack, settings, what, request)

        restored("the recording, to warm up", RestoreRequest(replayed, ("sbtest.*",)))
        found = [
            restored("changes of all tables", RestoreRequest(end.hi, ("sbtest.*",), verify=False)),
            restored(
                "changes of one table of four",
                RestoreRequest(end.hi, ("sbtest.sbtest1",), verify=False),
            ),
            restored("changes of all tables, verified", RestoreRequest(end.hi, ("sbtest.*",))),
        ]
        report("writing a snapshot")
        _write_snapshot(settings, end.hi, end.cluster_id, rows)
        return [
            *found,
            restored("rows of ten tables", RestoreRequest(end.hi, ("snapshot.*",), verify=False)),
            restored(
                "rows of one table of ten", RestoreRequest(end.hi, ("snapshot.t1",), verify=False)
            ),
            restored("rows of ten tables, verified", RestoreRequest(end.hi, ("snapshot.*",))),
        ]


def _restore(stack: Stack, settings: Settings, what: str, request: RestoreRequest) -> RestoreResult:
    drop_everything(stack.site())
    began = time.perf_counter()
    plan = plan_restore(settings, request)
    result = RestoreResult(
        what, plan_s=round(time.perf_counter() - began, 3), planned_s=plan.cost.seconds
    )
    job = create_or_resume(settings, request, "bench")
    processes = _Processes(stack)
    before, began = processes.cpu(), time.perf_counter()
    done = run_restore(settings, job, Runner("a benchmark"))
    after = processes.cpu()
    result.seconds = round(time.perf_counter() - began, 3)
    result.rows, result.row_bytes, result.changes = (
        done.snapshot_rows,
        plan.cost.snapshot_bytes,
        done.changes,
    )
    result.stages_s = dict(done.stages_s)
    result.cpu_s = {name: round(after[name] - before[name], 2) for name in after}
    return result


def _write_snapshot(settings: Settings, ts: int, cluster_id: int, rows: int) -> None:
    storage = Archive.open(settings.archive_url).storage
    snapshots = Archive.open(settings.archive_url).snapshots
    name = snapshot_id(ts, "bench")
    snapshots.begin(name, PendingSnapshot("bench"))
    tables = []
    for number in range(_TABLES):
        table = replace(
            TABLE,
            id=10_000_000 + number,
            schema_id=9_999_999,
            schema_name="snapshot",
            name=f"t{number}",
        )
        files = write_files(
            storage, f"snapshots/{name}/{table.id}", table, _batches(table, rows // _TABLES, number)
        )
        tables.append(SnapshotTable("snapshot", table.name, table.to_json(), tuple(files)))
    schema = Schema(9_999_999, "snapshot", "utf8mb4", "utf8mb4_bin")
    made_ms = time.time_ns() // 1_000_000
    snapshots.publish(
        ArchiveSnapshot(
            name, ts, 0, cluster_id, made_ms, "a benchmark", (schema.to_json(),), tuple(tables)
        )
    )


def _batches(table: Table, rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    randomly = np.random.default_rng(seed)
    digits = randomly.integers(0, 10**11, (_TEXTS, 10))
    texts = pa.array(["-".join(f"{number:011}" for number in row) for row in digits])
    schema = rows_schema(table)
    for first in range(0, rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, rows - first)
        picked = [texts.take(pa.array(randomly.integers(0, _TEXTS, count))) for _ in range(2)]
        pads = pc.utf8_slice_codeunits(picked[1], 0, 59)
        columns = [
            pa.array(np.arange(first + 1, first + count + 1)),
            pa.array(randomly.integers(0, rows, count)),
        ]
        arrays = [*columns, picked[0], pads]
        yield pa.RecordBatch.from_arrays(
            [a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
        )


class _Processes(SparkProcesses):
    """The processes, with the database."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._mariadb = psutil.Process(stack.state().parts["mariadb"].process.pid)

    def cpu(self) -> dict[str, float]:
        # Spark's workers end with each session, and with them the count of their time.
        found = super().cpu() | {"mariadb": sum(self._mariadb.cpu_times()[:2])}
        return {name: found[name] for name in ("client", "JVM", "mariadb")}
