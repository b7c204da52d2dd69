"""Measure how fast traffic of other shapes than sysbench's is applied (`sluice.bench.shapes`).

It is applied from a relay log into MariaDB at its default durability. Nothing else runs: windows
are prepared in this process, one batch ahead of the one that is written, as without Spark. So a
rate is what two processes reach, this one and the server, and CPU time a row change is that of
each of them. The batches that only fill the tables are left out. In the end every table must hold
as many rows as the traffic leaves.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psutil
import pyarrow as pa

from sluice.bench.far_proxy import FarProxy
from sluice.bench.shape_parts import SCHEMA, History, groups, history
from sluice.bench.shapes import SHAPES
from sluice.devstack import Stack
from sluice.devstack.launch import StackPaths, connect, drop_everything
from sluice.devstack.repository import recording_folder
from sluice.etl.apply import BatchReport, prepare_options, run_apply
from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.planning import prepare
from sluice.etl.downstream.ddl import create_table
from sluice.etl.settings import Relay, Settings, load_settings
from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord
from sluice.tidb import tso
from sluice.tidb.schema import Table

RECORDED = "shop"
"""The shape that is a recording's traffic."""
NAMES = (*SHAPES, RECORDED)
_FIRST_TS = tso.compose(1_790_000_000_000)
_WINDOW = 250  # transactions
_PATIENCE_S = 900.0
_PARTS = ("etcd", "cluster", "mariadb")  # applying asks the registry whether a Drainer runs, too


@dataclass(slots=True)
class ShapeResult:
    """One shape. Row changes are the upstream's."""

    shape: str
    rows_per_s: float = 0.0
    changes: int = 0
    seconds: float = 0.0
    batches: int = 0
    net_rows: int = 0
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time a row change: of this process, which prepares and sends, and of MariaDB."""
    stages_ms: dict[str, float] = field(default_factory=dict)
    differences: int = 0
    """Tables that hold another number of rows than they should."""


def measure(
    stack: Stack, names: Sequence[str], report: Callable[[str], None], round_trip_ms: float = 0.0
) -> list[ShapeResult]:
    """Return a result for each of `names`, which are in NAMES.

    `round_trip_ms`: how far away the downstream is. Raises StackError.
    """
    stack.down()
    stack.wipe(*_PARTS, "relay", "logs")
    try:
        stack.claim()
        stack.up(_PARTS, live=True, report=report)
        with FarProxy(stack.site().ports["mariadb"], round_trip_ms / 2000) as far:
            port = far.port if round_trip_ms else far.to
            return [_measure(stack, name, report, port) for name in names]
    finally:
        stack.down()


def _measure(
    stack: Stack, name: str, report: Callable[[str], None], applied_by: int
) -> ShapeResult:
    """Apply once and measure; `applied_by` is the port by which changes reach MariaDB."""
    folder = stack.home / "shapes"
    shutil.rmtree(folder, ignore_errors=True)
    report(f"{name}: making its traffic")
    drop_everything(stack.site())
    made, batch = None, 25_000
    if name == RECORDED:
        relay, filled_ts = _landed_recording(folder.as_uri()), 0
    else:
        shape = SHAPES[name]()
        made, batch = history(shape), shape.batch
        relay, filled_ts = landed(made, folder.as_uri(), shape.window)
        _create_tables(stack.site(), made)
    report(f"{name}: applying")
    whole = load_settings(stack.home / "sluice.toml")
    limits = replace(whole.apply, max_rows=batch)
    settings = Settings(
        whole.upstream,
        Relay(folder.as_uri()),
        replace(whole.downstream, port=applied_by),
        apply=limits,
    )
    server = psutil.Process(stack.state().parts["mariadb"].process.pid)
    result = _apply(settings, relay, filled_ts, server, ShapeResult(name))
    if made is not None:
        result.differences = _differences(stack.site(), made)
    shutil.rmtree(folder, ignore_errors=True)
    report(f"{name}: {result.rows_per_s:,.0f} row changes/s")
    return result


def _landed_recording(url: str) -> RelayLog:
    from tests.etl.relay_from_recording import land

    return land(recording_folder("tests/recordings/" + RECORDED), url, _WINDOW)


def landed(made: History, url: str, window: int) -> tuple[RelayLog, int]:
    """Return a relay log of windows of `window` transactions each, and where the filling ends.

    The second value is the end (TSO) of the last window that fills the tables.
    """
    relay = RelayLog.open(url)
    lo = filled_ts = _FIRST_TS
    for which, transactions in enumerate(
        (made.transactions[: made.first], made.transactions[made.first :])
    ):
        for chosen in groups(transactions, window):
            hi = lo + 2 * len(chosen)
            rows = [
                (lo + 2 * n, lo + 2 * n - 1, position, table.id, 1, kind, row)
                for n, changes in enumerate(chosen, 1)
                for position, (table, kind, row) in enumerate(changes)
            ]
            columns = [
                pa.array(c, f.type)
                for c, f in zip(zip(*rows, strict=True), PART_SCHEMA, strict=True)
            ]
            part = relay.write_part(
                lo, hi, "bench", 0, [pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)]
            )
            assert part is not None
            tables = {
                str(table.id): table.to_json() for changes in chosen for table, _, _ in changes
            }
            relay.commit(
                WindowRecord(lo, hi, 7, "bench", 0, len(chosen), len(rows), 1, (part,), tables)
            )
            lo = hi
        filled_ts = filled_ts if which else lo
    return relay, filled_ts


def _tables(made: History) -> list[Table]:
    found = {table.id: table for changes in made.transactions for table, _, _ in changes}
    return list(found.values())


def _create_tables(site: StackPaths, made: History) -> None:
    with connect(site) as database, database.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
        dialect = Dialect.from_version(str(version))
        cursor.execute(f"CREATE DATABASE `{SCHEMA}`")
        for table in _tables(made):
            cursor.execute(create_table(table, dialect)[0])


def _apply(
    settings: Settings, relay: RelayLog, filled_ts: int, server: psutil.Process, result: ShapeResult
) -> ShapeResult:
    options = prepare_options(settings)
    last = relay.last()
    assert last is not None
    own = psutil.Process()
    reports: list[BatchReport] = []

    def apply_until(ts: int) -> None:
        run_apply(
            settings, until_ts=ts, run_seconds=_PATIENCE_S, on_batch=reports.append,
            prepare=lambda windows: prepare(settings.relay.url, windows, options),
        )  # fmt: skip

    def spent() -> tuple[float, float, float]:
        return time.perf_counter(), sum(own.cpu_times()[:2]), sum(server.cpu_times()[:2])

    if filled_ts:
        apply_until(filled_ts)
        reports.clear()
    before = spent()
    apply_until(last.hi)
    after = spent()
    for report in reports:
        result.batches += 1
        result.changes += report.changes
        result.net_rows += report.rows
        for stage, ms in report.stages_ms.items():
            result.stages_ms[stage] = round(result.stages_ms.get(stage, 0.0) + ms, 1)
    result.seconds = round(after[0] - before[0], 3)
    result.rows_per_s = round(result.changes / (after[0] - before[0]))
    for place, name in ((1, "client"), (2, "MariaDB")):
        result.cpu_us[name] = round(
            (after[place] - before[place]) * 1e6 / max(1, result.changes), 2
        )
    return result


def _differences(site: StackPaths, made: History) -> int:
    with connect(site) as database, database.cursor() as cursor:
        wrong = 0
        for name, count in made.counts.items():
            schema, _, table = name.partition(".")
            cursor.execute(f"SELECT COUNT(*) FROM `{schema}`.`{table}`")
            ((found,),) = cursor.fetchall()
            wrong += int(found) != count
        return wrong
