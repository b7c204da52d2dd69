"""Two clusters that replicate each other, each a MariaDB that looks like a TiDB.

What anybody commits in one, its applications or the pipeline that writes to it, becomes its
binlogs: MariaDB's own binlog has it in the order of commits, and `Cluster.land` makes windows of a
relay log of it. A snapshot of a transaction has a place in that binlog, and so a timestamp among
the commits. It shares no code with what decides conflicts.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pymysql

from sluice.etl.settings import Settings, load_settings
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.tidb_stand_in import TiDBStandIn

BINLOG = ("--log-bin=log", "--binlog-format=ROW", "--binlog-checksum=NONE", "--server-id=1")
"""Options of a cluster's server."""
_TABLE_MAP, _QUERY, _XID, _GTID = 19, 2, 16, 162
_ROWS = {23: INSERT, 24: UPDATE, 25: DELETE}
_LONG, _LONGLONG, _VARCHAR = 3, 8, 15

Values = tuple[object, ...]


@dataclass(frozen=True)
class RowEvent:
    """A changed row of a table, ``schema.name``; `old` and `new` are () where there is none."""

    table: str
    kind: int
    old: Values
    new: Values


def transactions_of(data: bytes, start: int, end: int) -> Iterator[list[RowEvent]]:
    """The transactions in a binlog file's bytes between two positions."""
    maps: dict[int, tuple[str, bytes, list[int]]] = {}
    rows: list[RowEvent] = []
    at = start
    while at < end:
        kind, size = data[at + 4], struct.unpack_from("<I", data, at + 9)[0]
        body = data[at + 19 : at + size]
        if kind == _GTID:
            rows = []
        elif kind == _TABLE_MAP:
            maps[int.from_bytes(body[:6], "little")] = _table_map(body)
        elif kind in _ROWS:
            found = maps[int.from_bytes(body[:6], "little")]
            if found[0] in ("d.item", "retl._drainer_repl_mark"):
                rows += _rows(found, _ROWS[kind], body)
        elif kind == _XID:
            yield rows
        at += size


def _table_map(body: bytes) -> tuple[str, bytes, list[int]]:
    at = 8
    names = []
    for _ in range(2):
        names.append(body[at + 1 : at + 1 + body[at]].decode())
        at += body[at] + 2
    count = body[at]
    types = body[at + 1 : at + 1 + count]
    at += count + 2
    meta = []
    for one in types:
        meta.append(struct.unpack_from("<H", body, at)[0] if one == _VARCHAR else 0)
        at += 2 if one == _VARCHAR else 0
        if one not in (_LONG, _LONGLONG, _VARCHAR):
            break  # of a table that isn't looked at
    return ".".join(names), types, meta


def _rows(found: tuple[str, bytes, list[int]], kind: int, body: bytes) -> Iterator[RowEvent]:
    name, types, meta = found
    width = (len(types) + 7) // 8
    at = 9 + width * (2 if kind == UPDATE else 1)
    while at < len(body):
        first, at = _values(types, meta, body, at)
        second: Values = ()
        if kind == UPDATE:
            second, at = _values(types, meta, body, at)
        old, new = ((), first) if kind == INSERT else (first, second)
        yield RowEvent(name, kind, old, new)


def _values(types: bytes, meta: list[int], body: bytes, at: int) -> tuple[Values, int]:
    width = (len(types) + 7) // 8
    nulls = int.from_bytes(body[at : at + width], "little")
    at += width
    row: list[object] = []
    for number, kind in enumerate(types):
        if nulls >> number & 1:
            row.append(None)
        elif kind == _VARCHAR:
            head = 2 if meta[number] > 255 else 1
            size = int.from_bytes(body[at : at + head], "little")
            row.append(body[at + head : at + head + size].decode())
            at += head + size
        else:
            size = 4 if kind == _LONG else 8
            row.append(int.from_bytes(body[at : at + size], "little", signed=True))
            at += size
    return tuple(row), at


def _tables(first_id: int) -> dict[str, Table]:
    """The tables of a cluster by name, under ids of its own."""
    marks = table(
        first_id + 1,
        "_drainer_repl_mark",
        "id bigint not null",
        "channel_id bigint not null",
        "val bigint",
        "channel_info varchar(64)",
        primary="id,channel_id",
    )
    return {
        "d.item": table(first_id, "item", "id int", "v int", primary="id"),
        "retl._drainer_repl_mark": replace(marks, schema_name="retl", schema_id=9),
    }


class Cluster:
    """A cluster. `now` gives its timestamps; its clock is `ahead_ms` ahead.

    It goes in steps of `tick_ms`, so that both clusters often commit in the same millisecond.
    """

    def __init__(
        self,
        server: MariaDBServer,
        folder: Path,
        cluster_id: int,
        ahead_ms: int = 0,
        pipelines: int = 1,
    ) -> None:
        """Begin with an empty table; each of the `pipelines` from here has a relay log."""
        self.server = server
        self.cluster_id = cluster_id
        self.tidb = TiDBStandIn(server)
        self.tidb.snapshot_ts = self._snapshot_ts
        self.urls = [f"file://{folder}/relay-{cluster_id}-{n}" for n in range(pipelines)]
        self.url = self.urls[0]
        self._relays = [RelayLog.open(url) for url in self.urls]
        self.committed: list[tuple[int, list[RowEvent]]] = []
        """Every transaction with rows, in order, with its commit_ts."""
        self._ahead_ms = ahead_ms
        self.tick_ms = 1
        self._tables = _tables(100 * cluster_id)
        self._lock = threading.RLock()
        self._last_ts = 0
        self._waiting: list[tuple[int, int, list[RowEvent]]] = []
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.item (id int PRIMARY KEY, v int)")
            cursor.execute("SHOW MASTER STATUS")
            ((self._file, self._position, *_),) = cursor.fetchall()
        self.land()

    def now(self) -> int:
        """A timestamp that is later than all before it."""
        with self._lock:
            present_ms = int(time.time() * 1000 + self._ahead_ms)
            present = present_ms // self.tick_ms * self.tick_ms << 18
            self._last_ts = max(self._last_ts + 1, present)
            return self._last_ts

    def _snapshot_ts(self, file: str, position: int) -> int:
        with self._lock:
            assert file == self._file
            self._read(position)
            return self.now()

    def _read(self, end: int) -> None:
        """Give the transactions up to a position of the binlog their timestamps."""
        if end <= self._position:
            return
        data = (self.server.directory / "data" / self._file).read_bytes()
        for rows in transactions_of(data, self._position, end):
            start_ts, commit_ts = self.now(), self.now()
            if rows:
                self.committed.append((commit_ts, rows))
                self._waiting.append((start_ts, commit_ts, rows))
        self._position = end

    def land(self) -> None:
        """Land what was committed, as a window."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            ((file, end, *_),) = cursor.fetchall()
        with self._lock:
            assert file == self._file
            self._read(int(end))
            landed, self._waiting = self._waiting, []
            hi = self.now()
        rows = [
            (commit_ts, start_ts, n, self._tables[each.table].id, 1, each.kind, self._encoded(each))
            for start_ts, commit_ts, events in landed
            for n, each in enumerate(events)
        ]
        for relay in self._relays:
            self._commit(relay, rows, hi, len(landed))

    def _commit(
        self, relay: RelayLog, rows: list[tuple[object, ...]], hi: int, transactions: int
    ) -> None:
        last = relay.last()
        lo = last.hi if last else hi - (60_000 << 18)  # a minute in which nothing was written
        parts = ()
        if rows:
            columns = [
                pa.array(c, f.type)
                for c, f in zip(zip(*rows, strict=True), PART_SCHEMA, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)
            part = relay.write_part(lo, hi, "t", 0, [batch])
            assert part is not None
            parts = (part,)
        tables = {str(each.id): each.to_json() for each in self._tables.values()} if rows else {}
        relay.commit(
            WindowRecord(
                lo, hi, self.cluster_id, "t", 0, transactions, len(rows), 1, parts, tables, ()
            )
        )

    def _encoded(self, event: RowEvent) -> bytes:
        of = self._tables[event.table]
        names = [column.name for column in of.columns]
        old, new = (dict(zip(names, values, strict=False)) for values in (event.old, event.new))
        if event.kind == INSERT:
            return encode_insert(of, new)
        return encode_update(of, old, new) if event.kind == UPDATE else encode_delete(of, old)

    def execute(self, *statements: str) -> bool:
        """A transaction of an application; False if it was rolled back, as it collided."""
        connection = self.server.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                for statement in statements:
                    cursor.execute(statement)
                cursor.execute("COMMIT")
            return True
        except pymysql.err.MySQLError:
            return False
        finally:
            connection.close()

    def rows(self) -> dict[int, int]:
        """What is in the table, by key."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, v FROM d.item")
            return dict(cursor.fetchall())

    def close(self) -> None:
        self.tidb.close()


def direction(
    origin: Cluster, target: Cluster, folder: Path, conflicts: str = "last-commit-wins"
) -> Settings:
    """The settings of the pipeline from one cluster to the other."""
    path = folder / f"from-{origin.cluster_id}.toml"
    path.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{origin.url}"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {target.tidb.port}\nuser = "sluice"\n'
        "loopback-control = true\nchannel-id = 7\n[window]\nidle-interval-ms = 100\n"
        f'[apply]\nconflicts = "{conflicts}"\nreverse-relay = "{target.url}"\n'
    )
    return load_settings(path)


def last_writes(*clusters: Cluster) -> dict[int, int]:
    """What the applications' last writes leave, by key: the youngest millisecond wins, of equal
    ones the cluster with the larger id.
    """
    newest: dict[int, tuple[tuple[int, int, int], int | None]] = {}
    for cluster in clusters:
        for commit_ts, rows in cluster.committed:
            if any(row.table != "d.item" for row in rows):
                continue  # a pipeline's
            for number, row in enumerate(rows):
                stamp = (commit_ts >> 18, cluster.cluster_id, commit_ts * 1000 + number)
                for values, value in ((row.old, None), (row.new, row.new[1:])):
                    if values:
                        key = int(str(values[0]))
                        known = newest.get(key)
                        if known is None or stamp >= known[0]:
                            newest[key] = stamp, None if value is None else int(str(value[0]))
    return {key: value for key, (_, value) in newest.items() if value is not None}
