"""Bootstraps from the recorded dumps, and what a test needs to look at them."""

from __future__ import annotations

from pathlib import Path

from sluice.etl.changes.rules import Filter
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.bootstrap_run import BootstrapSummary
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.worker import make_loads
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, jobs

RECORDING = RECORDINGS / "bootstrap"
DUMPS = {"dump-sql": "dump_sql", "dump-csv": "dump_csv", "dump-csv-plain": "dump_csv_plain"}
"""Each folder, and the snapshot at its position."""
CLUSTER = 7
BANK_ONLY = Filter(do_schemas=("bank",))


def definitions(ts: int) -> SourceSchema:
    """What TiDB's job history says the schema was at `ts`."""
    found = [DdlHistoryJob.from_json(raw) for raw in jobs(RECORDING).values()]
    return SourceSchema.from_history(
        SchemaHistory.from_jobs(job for job in found if job.finished_ts <= ts), ts
    )


def settings_of(
    server: MariaDBServer, folder: Path, filters: Filter | None = None, mode: str = "atomic"
) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(f"file://{folder}/relay"),
        server.downstream,
        apply=Apply(mode=mode, worker_count=2),
        filters=filters or Filter(),
    )


def bootstrap(settings: Settings, dump: Path) -> BootstrapSummary:
    source = DumplingFolder.open(str(dump))
    copy = BootstrapPlanner(settings, source, definitions(source.position), CLUSTER)
    return copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
