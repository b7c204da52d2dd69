"""Measure how fast two equal tables are compared by checksums, and where that is limited.

The servers compute the checksums.

python -m sluice.bench.verify [ROWS [SESSIONS]]

MariaDB at its default durability runs, nothing else, with a table of sysbench's shape (190 bytes a
row) in two schemas: one is the downstream's, at a checkpoint, the other stands for the upstream,
so both sides share this machine's cores. A real TiDB computes its half on machines of its own.
What the job compares with is `sluice.etl.verify.table_compare`, range after range over SESSIONS
sessions; CPU time is the server's and this process's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pyarrow as pa

from sluice.bench.copy import POSITION, TABLE
from sluice.devstack import Stack
from sluice.devstack.launch import drop_everything
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.settings import Settings, load_settings
from sluice.etl.verify.checksum import Checksum
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.endpoint import ComparedTable, KeyRange
from sluice.etl.verify.table_compare import RANGE_BYTES, TableComparer, TableComparison
from sluice.etl.verify.tables import compared_tables
from sluice.tidb.schema import Schema

ROWS, SESSIONS = 3_000_000, 2
_CLUSTER = 1
_UPSTREAM = "upstream_of_sbtest"
_TEXT = "REPEAT(CONCAT(LPAD(CONV(CRC32(seq {sign} {salt}), 10, 10), 10, '0'), '-'), {times})"


@dataclass(slots=True)
class VerifyResult:
    """One comparison.

    `bytes` are those of the downstream's table, `cpu_s` of all that took part.
    """

    sessions: int
    rows: int
    bytes: int
    seconds: float
    cpu_s: dict[str, float]
    differences: int


class _Upstream(DownstreamEndpoint):
    """The tables of the other schema."""

    def checksum(self, session: int, table: ComparedTable, within: KeyRange) -> Checksum | None:
        return super().checksum(session, _other(table), within)

    def rows(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        return super().rows(session, _other(table), within)

    def ranges(self, table: ComparedTable) -> list[KeyRange]:
        return self.even_ranges(0, _other(table), max(1, table.bytes // RANGE_BYTES))


def _other(table: ComparedTable) -> ComparedTable:
    return replace(table, place=replace(table.place, schema=_UPSTREAM))


def measure(
    stack: Stack, rows: int, ways: list[int], report: Callable[[str], None]
) -> list[VerifyResult]:
    """Return a result for each number of sessions.

    Raises StackError.
    """
    stack.down()
    stack.wipe("mariadb", "relay", "logs")
    try:
        stack.claim()
        stack.up(("mariadb",), report=report)
        settings = load_settings(stack.home / "sluice.toml")
        drop_everything(stack.site())
        report(f"{rows:,} rows twice")
        _fill(settings, rows)
        server = psutil.Process(stack.state().parts["mariadb"].process.pid)
        return [_compare(settings, server, number) for number in ways]
    finally:
        stack.down()


def _fill(settings: Settings, rows: int) -> None:
    session = MySQLSession(settings.downstream)
    session.connect()
    try:
        c, pad = (
            _TEXT.format(sign=sign, salt=7, times=times) for sign, times in (("*", 10), ("+", 5))
        )
        for schema in ("sbtest", _UPSTREAM):
            session.query(f"CREATE DATABASE {schema}")
            session.query(
                f"CREATE TABLE {schema}.sbtest1 (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120)"
                " NOT NULL, pad CHAR(60) NOT NULL, KEY k_1 (k)) CHARACTER SET utf8mb4 COLLATE"
                " utf8mb4_bin"
            )
            session.query(
                f"INSERT INTO {schema}.sbtest1 SELECT seq, seq * 7919 % {rows}, {c}, {pad}"
                f" FROM {schema}.seq_1_to_{rows}"
            )
            session.query(f"ANALYZE TABLE {schema}.sbtest1")
        table = CheckpointTable.from_settings(session, settings.downstream, _CLUSTER)
        table.create()
        place = settings.downstream.checkpoint_schema
        row = f'{{"consistent":true,"commitTS":{POSITION},"ts-map":{{}}}}'
        session.query(f"INSERT INTO {place}.checkpoint VALUES ({_CLUSTER}, '{row}')")
        session.query("COMMIT")
    finally:
        session.close()


def _compare(settings: Settings, server: psutil.Process, sessions: int) -> VerifyResult:
    known = SourceSchema(POSITION, 1, (Schema(3, "sbtest", "utf8mb4", "utf8mb4_bin"),), (TABLE,))
    session = MySQLSession(settings.downstream)
    session.connect()
    tables, left = compared_tables(settings, known, session)
    session.close()
    assert not left, left
    began, before = time.monotonic(), _cpu(server)
    with (
        ConsistentReader.open(settings.downstream, _CLUSTER, sessions) as down,
        ConsistentReader.open(settings.downstream, _CLUSTER, sessions) as up,
    ):
        sides = _Upstream(up, "the other schema"), DownstreamEndpoint(down, "the downstream")
        summaries = [
            one
            # it asks the other side for ranges and sums alone
            for one in TableComparer(*sides).run(tables, lambda: True)  # type: ignore[arg-type]
            if isinstance(one, TableComparison)
        ]
    seconds, after = time.monotonic() - began, _cpu(server)
    found = summaries[0].found
    wrong = 0 if found.apart is None else found.apart.count
    used = {name: round(after[name] - before[name], 2) for name in after}
    return VerifyResult(
        sessions, found.rows, tables[0].bytes, round(seconds, 2), used, wrong + found.more
    )


def _cpu(server: psutil.Process) -> dict[str, float]:
    return {"MariaDB": sum(server.cpu_times()[:2]), "client": sum(psutil.Process().cpu_times()[:2])}


def main(rows: int, ways: list[int]) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="sluice-verify-") as home:
        for each in measure(Stack(Path(home) / "stack"), rows, ways, print):
            print(
                f"{each.sessions} sessions: {each.rows:,} rows on each side,"
                f" {each.rows / each.seconds:,.0f} rows/s, {each.bytes / each.seconds / 1e6:,.0f}"
                f" MB/s, {each.seconds} s, CPU {each.cpu_s} s, {each.differences} differences",
                flush=True,
            )


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(numbers[0] if numbers else ROWS, numbers[1:] or [SESSIONS])
