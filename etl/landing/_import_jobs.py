"""Name tables that IMPORT INTO filled, whose rows have no binlog.

IMPORT INTO ingests files into TiKV. Its rows have neither binlogs nor change data, and its job is
no DDL job. TiDB 7.2 and newer write `mysql.tidb_import_jobs` in internal sessions, which have no
binlog either. So the rows of that table are read from TiKV.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.relay import RelayLog
from sluice.relay.verification_log import UPSTREAM, TableVerified, Verifications
from sluice.tidb import tso
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.rows import decode_inserts
from sluice.tidb.schema import Table
from sluice.tidb.stored_rows import StoredRowConverter
from sluice.tidb.table_name import argument, full_name
from sluice.tidb.tikv import TiKVClient
from sluice.tidb.tikv.meta import find_table_info

log = logging.getLogger("sluice.land")

_NAME = "tidb_import_jobs"
_CHECK_INTERVAL_S = 60.0
"""How often the jobs are read: each time a scan of the definitions of TiDB's own tables."""


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A job of IMPORT INTO that has ended; one that failed or was cancelled may have left rows."""

    job_id: int
    schema_name: str
    table_name: str
    status: str
    ended_ms: int
    """Unix time in ms."""


def read_import_jobs(tikv: TiKVClient, ts: int) -> list[ImportJob]:
    """Return the jobs that had begun and ended as of a TSO, by id.

    None in a cluster older than TiDB 7.2. Raises TiKVError, SchemaError, CodecError.
    """
    info = find_table_info(tikv, "mysql", _NAME, ts)
    if info is None:
        return []
    table = Table.from_tidb(info, 0, "mysql")
    converter, prefix = StoredRowConverter(table), b"t" + encode_int(table.id) + b"_r"
    rows = [
        converter.insert(key[len(prefix) :], value)
        for key, value in tikv.scan(prefix, prefix + b"\xff", ts)
    ]
    return [
        ImportJob(
            row["id"], row["table_schema"], row["table_name"], row["status"], _ms(row["end_time"])
        )
        for row in decode_inserts(table, pa.array(rows, pa.large_binary())).to_pylist()
        if row["start_time"] is not None and row["end_time"] is not None
    ]


def _ms(text: str) -> int:
    """Return Unix ms of a time in UTC."""
    at = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return int(at.timestamp() * 1000)


class ImportWatch:
    """Find tables that IMPORT INTO has filled since the relay log began."""

    def __init__(
        self,
        relay: RelayLog,
        tikv: TiKVClient,
        wants_table: Callable[[str, str], bool],
        count: Callable[[int], None],
    ) -> None:
        """Create the import watch; `wants_table(schema, table)`: whether the table is replicated.

        `count` gets how many jobs were found.
        """
        self._relay, self._tikv, self._wants_table = relay, tikv, wants_table
        self._count = count
        self._due = 0.0

    def check(self, landed_ts: int) -> None:
        """Name each table once in the log, and until it is verified in `sluice status`.

        A table that was verified, or named, after its import ended isn't named. Best effort: a
        failure is logged, and the next check repeats it.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _CHECK_INTERVAL_S
        try:
            self._check(landed_ts)
        except (SluiceError, OSError, ValueError) as error:
            log.warning("can't look for jobs of IMPORT INTO: %s", error)

    def _check(self, landed_ts: int) -> None:
        began_at = self._relay.began_at()
        jobs = {
            full_name(job.schema_name, job.table_name): job
            for job in read_import_jobs(self._tikv, landed_ts)
            if began_at is not None
            and job.ended_ms >= tso.physical_ms(began_at)
            and self._wants_table(job.schema_name, job.table_name)
        }
        verifications = Verifications(self._relay)
        known = verifications.last() if jobs else {}
        found = {
            name: job
            for name, job in jobs.items()
            if name not in known or known[name].at_ms < job.ended_ms
        }
        if not found:
            return
        for name, job in found.items():
            log.warning("IMPORT INTO filled table %s: %s", name, _import_problem(job, name))
        verifications.doubt(
            TableVerified(
                name, landed_ts, max(time.time_ns() // 1_000_000, job.ended_ms), 0, 0, 0, UPSTREAM,
                "", _import_problem(job, name),
            )
            for name, job in found.items()
        )  # fmt: skip
        self._count(len(found))


def _import_problem(job: ImportJob, name: str) -> str:
    return (
        f"job {job.job_id} of IMPORT INTO ({job.status}) brought rows without a binlog: run `sluice"
        f" backfill --table {argument(name)}`, then `sluice verify {argument(name)}`"
    )
