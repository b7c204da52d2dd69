"""A past that is made up, and what of it can be had: by reading what is there, with no word of what
retention thinks.

`Past` invents traffic and DDL and knows every state that ever was. `Reader` reads snapshots, the
archive and the relay log, and has nothing else in common with the code under test.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord
from sluice.relay.archive import Archive, ArchiveSnapshot, SnapshotStore
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table

HOUR = 3_600_000 << 18
MINUTE = 60_000 << 18
BEGIN = 1_767_225_600_000 << 18  # 2026-01-01T00:00:00Z
INSERT, UPDATE, DELETE = 0, 1, 2
BASE_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string())])

Rows = dict[int, str]
States = dict[str, Rows]
"""Rows of each table that is there, by name."""


def crc32c(content: bytes) -> int:
    return int(google_crc32c.value(content))


def definition(table_id: int, name: str) -> dict[str, Any]:
    return Table(table_id, 1, "s", name).to_json()


@dataclass
class Past:
    """What is committed upstream, window by window."""

    random: random.Random
    ids: dict[int, str] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    dropped: dict[int, tuple[str, Rows]] = field(default_factory=dict)
    history: list[tuple[int, States]] = field(default_factory=list)
    named: dict[int, dict[int, str]] = field(default_factory=dict)
    version: int = 1
    next_id: int = 100
    now: int = BEGIN

    def state(self) -> States:
        return {f"s.{name}": dict(self.rows[table_id]) for table_id, name in self.ids.items()}

    def begin(self, tables: int) -> None:
        for _ in range(tables):
            self._made(self._fresh())
        self._note(self.now)

    def ids_at(self, ts: int) -> dict[int, str]:
        """The tables at a moment of `history`, by id."""
        return self.named[ts]

    def _note(self, ts: int) -> None:
        self.history.append((ts, self.state()))
        self.named[ts] = dict(self.ids)

    def land(self, relay: RelayLog, *, quiet: bool = False) -> None:
        """A window more."""
        lo = self.now
        hi = lo + self.random.randrange(5, 90) * MINUTE
        there = dict(self.ids)
        changes: list[tuple[int, int, int, int, bytes]] = []
        ddls: list[dict[str, Any]] = []
        touched: set[int] = set()
        at = lo
        while not quiet and (at := at + self.random.randrange(1, 40) * MINUTE) <= hi:
            if self.random.random() < 0.12:
                ddls.append(self._ddl(at))
                touched |= {int(i) for i in ddls[-1]["effect"]["tables"]}
            else:
                changes += self._transaction(at)
            self._note(at)
        touched |= {change[2] for change in changes}
        self._commit(
            relay,
            lo,
            hi,
            changes,
            ddls,
            {str(i): definition(i, there[i]) for i in touched & there.keys()},
        )
        self.now = hi
        self._note(hi)

    def _commit(
        self, relay: RelayLog, lo: int, hi: int, changes: list[Any], ddls: list[Any], tables: Any
    ) -> None:
        batch = pa.record_batch(
            [
                pa.array([change[0] for change in changes], pa.int64()),
                pa.array([change[0] - 1 for change in changes], pa.int64()),
                pa.array([change[1] for change in changes], pa.int32()),
                pa.array([change[2] for change in changes], pa.int64()),
                pa.array([self.version] * len(changes), pa.int64()),
                pa.array([change[3] for change in changes], pa.int8()),
                pa.array([change[4] for change in changes], pa.large_binary()),
            ],
            schema=PART_SCHEMA,
        )
        part = relay.write_part(
            lo, hi, f"t{self.random.randrange(1 << 30):x}", 0, [batch] if changes else []
        )
        parts = (part,) if part else ()
        commits = len({change[0] for change in changes})
        relay.commit(
            WindowRecord(
                lo=lo,
                hi=hi,
                cluster_id=1,
                token="t",
                landed_ms=0,
                transactions=commits,
                changes=len(changes),
                schema_version=self.version,
                parts=parts,
                tables=tables,
                ddls=tuple(ddls),
            )
        )

    def _transaction(self, ts: int) -> list[tuple[int, int, int, int, bytes]]:
        changes: list[tuple[int, int, int, int, bytes]] = []
        for position in range(self.random.randrange(1, 4) if self.ids else 0):
            # the older half is left alone, so that snapshots refer to each other
            ids = sorted(self.ids)
            table_id = self.random.choice(ids[len(ids) * 2 // 3 :])
            rows = self.rows[table_id]
            key, value = self.random.randrange(6), f"{ts}/{position}"
            kind = INSERT if key not in rows else self.random.choice((UPDATE, DELETE))
            changes.append((ts, position, table_id, kind, json.dumps([key, value]).encode()))
            if kind == DELETE:
                del rows[key]
            else:
                rows[key] = value
        return changes

    def _ddl(self, ts: int) -> dict[str, Any]:
        self.version += 1
        kinds = [Action.CREATE_TABLE]
        if self.ids:
            kinds += [
                Action.DROP_TABLE,
                Action.TRUNCATE_TABLE,
                Action.RENAME_TABLE,
                Action.PARTITION_TABLE,
            ]
        if self.dropped:
            kinds += [Action.RECOVER_TABLE] * 3
        kind = self.random.choice(kinds)
        effect = self._effect(kind)
        return {
            "commit_ts": ts,
            "start_ts": ts - 1,
            "job_id": self.version,
            "query": kind.title,
            "schema_state": 5,
            "schema_version": self.version,
            "type": int(kind),
            "schema_name": "s",
            "table_name": "",
            "effect": {
                "schemas": {},
                "tables": {
                    str(i): None if name is None else definition(i, name)
                    for i, name in effect.items()
                },
            },
            "time_zone": "",
            "sql_mode": None,
            "converted_from_ts": 0,
        }

    def _effect(self, kind: Action) -> dict[int, str | None]:
        if kind == Action.CREATE_TABLE:
            table_id = self._made(self._fresh())
            return {table_id: self.ids[table_id]}
        if kind == Action.RECOVER_TABLE:
            table_id = self.random.choice(sorted(self.dropped))
            self.ids[table_id], self.rows[table_id] = self.dropped.pop(table_id)
            return {table_id: self.ids[table_id]}
        table_id = self.random.choice(sorted(self.ids))
        name = self.ids.pop(table_id)
        rows = self.rows.pop(table_id)
        if kind == Action.DROP_TABLE:
            self.dropped[table_id] = (name, rows)
            return {table_id: None}
        if kind == Action.RENAME_TABLE:
            self._made(self._fresh(), rows, table_id)
            return {table_id: self.ids[table_id]}
        new_id = self._made(name, rows if kind == Action.PARTITION_TABLE else None)
        return {table_id: None, new_id: name}

    def _fresh(self) -> str:
        self.next_id += 1
        return f"t{self.next_id}"

    def _made(self, name: str, rows: Rows | None = None, table_id: int = 0) -> int:
        self.next_id += 1
        table_id = table_id or self.next_id
        self.ids[table_id], self.rows[table_id] = name, rows if rows is not None else {}
        return table_id


@dataclass(frozen=True)
class Start:
    """Where reading may begin: what a snapshot holds, or nothing."""

    ts: int
    names: Mapping[int, str]
    rows: Mapping[int, Rows]


class Reader:
    """Everything that can be read of an archive and a relay log now."""

    def __init__(self, archive: Archive, relay: RelayLog, *, since: int = 0) -> None:
        self._archive, self._relay = archive, relay
        self.events = sorted(self._events(since), key=lambda event: event[:2])
        first = archive.first() or relay.first()
        self.lo = max(first.lo if first is not None else 0, since)

    def _events(self, since: int) -> Iterator[tuple[int, int, Any]]:
        """DDL and changes by commit ts.

        What is in the archive from there, the rest from the relay log.
        """
        end = since
        for log in (self._archive.log, self._relay):
            first = log.first()
            for window in log.windows(max(end, first.lo if first is not None else 0)):
                assert not end or window.lo <= end, (
                    f"what was committed from {end} to {window.lo} is lost"
                )
                yield from (
                    (ddl["commit_ts"], -1, ddl) for ddl in window.ddls if ddl["commit_ts"] > end
                )
                table = log.read([window])
                for change in table.to_pylist():
                    if change["commit_ts"] > end:
                        yield change["commit_ts"], change["position"], change
                end = max(end, window.hi)
        self.hi = end

    def starts(self, only: str = "") -> Iterator[Start]:
        """Nothing, where the chain begins, and each snapshot."""
        if not only:
            yield Start(self.lo, {}, {})
        for snapshot in SnapshotStore(self._archive.storage).all():
            if (not only or snapshot.id == only) and self.lo <= snapshot.ts <= self.hi:
                yield self._start(snapshot)

    def _start(self, snapshot: ArchiveSnapshot) -> Start:
        names, rows = {}, {}
        for table in snapshot.tables:
            table_id = int(table.table["id"])
            names[table_id] = table.full_name
            read = [
                pq.read_table(pa.BufferReader(self._archive.storage.read(file.path)))
                for file in table.files
            ]
            rows[table_id] = {row["key"]: row["value"] for part in read for row in part.to_pylist()}
        return Start(snapshot.ts, names, rows)

    def states(self, start: Start, moments: Sequence[int]) -> Iterator[tuple[int, States]]:
        """The tables that are known, at each moment that can be had from `start`.

        Moments ascend.
        """
        names, rows = dict(start.names), {i: dict(found) for i, found in start.rows.items()}
        dropped: dict[int, tuple[str, Rows]] = {}
        events = deque(event for event in self.events if event[0] > start.ts)
        for moment in moments:
            while events and events[0][0] <= moment:
                self._take(events.popleft()[2], names, rows, dropped)
            if start.ts <= moment <= self.hi:
                yield moment, {name: rows[i] for i, name in names.items()}

    def _take(
        self, event: Any, names: dict[int, str], rows: dict[int, Rows], dropped: dict[int, Any]
    ) -> None:
        if "effect" in event:
            self._ddl(event, names, rows, dropped)
        elif event["table_id"] in names:
            key, value = json.loads(event["row"])
            if event["kind"] == DELETE:
                del rows[event["table_id"]][key]
            else:
                rows[event["table_id"]][key] = value

    def _ddl(
        self, ddl: Any, names: dict[int, str], rows: dict[int, Rows], dropped: dict[int, Any]
    ) -> None:
        effect = {
            int(i): table and f"s.{table['name']}" for i, table in ddl["effect"]["tables"].items()
        }
        match ddl["type"]:
            case Action.CREATE_TABLE:
                for i, name in effect.items():
                    names[i], rows[i] = name, {}
            case Action.DROP_TABLE:
                for i in effect:
                    if i in names:
                        dropped[i] = names.pop(i), rows.pop(i)
            case Action.RENAME_TABLE:
                names |= {i: name for i, name in effect.items() if i in names}
            case Action.RECOVER_TABLE:
                for i, name in effect.items():
                    if i in dropped:
                        names[i], rows[i] = name, dropped.pop(i)[1]
            case Action.TRUNCATE_TABLE | Action.PARTITION_TABLE:
                (old,) = (i for i, name in effect.items() if name is None)
                (new,) = (i for i, name in effect.items() if name is not None)
                name, kept = names.pop(old, None), rows.pop(old, None)
                if ddl["type"] == Action.TRUNCATE_TABLE:
                    names[new], rows[new] = effect[new], {}
                elif name is not None:
                    names[new], rows[new] = effect[new], kept


def restorable(reader: Reader, past: Past) -> set[tuple[int, str]]:
    """Every (moment, table) that can be had.

    Raises AssertionError if what can be had isn't what was.
    """
    was = dict(past.history)
    moments = sorted(was)
    found: set[tuple[int, str]] = set()
    for start in reader.starts():
        for ts, states in reader.states(start, moments):
            for name, rows in states.items():
                assert was[ts].get(name) == rows, f"{name} at {ts}, from {start.ts}"
                found.add((ts, name))
    return found
