"""A model of TiDB's partitions under schema changes: physical partitions, and sessions that are one
schema version behind.

What a session writes goes by the definition that it uses, so what it means is known without any
rule of replication: rows lie in physical partitions, and at the end a table holds what lies in
those it has then. The binlog names the version with which the transaction began: with metadata
locks that may be older than the definition. TiKV knows.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing.definitions_used import DefinitionResolver
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord
from sluice.tidb.codec import encode_int
from sluice.tidb.ddl_actions import MOVES_ROWS, Action
from sluice.tidb.ddl_job import DdlEffect, FinishedRowMove
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.tikv import Mvcc, MvccLock, MvccWrite

Row = dict[str, Any]
FIRST_TS = 400_000_000_000 << 18
CREATE = (
    "CREATE DATABASE d",
    (
        "CREATE TABLE d.t (p int, v int{key}) PARTITION BY RANGE (p) (PARTITION p0 VALUES LESS THAN"
        " (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (30), PARTITION"
        " p3 VALUES LESS THAN (40))"
    ),
    "CREATE TABLE d.u (p int, v int{key})",
)
_T, _U = 101, 102


@dataclass(frozen=True)
class Definition:
    """What is in force at a schema version: partitions of t (physical id, name, bound), the id of
    u.
    """

    partitions: tuple[tuple[int, str, int], ...] = (
        (201, "p0", 10),
        (202, "p1", 20),
        (203, "p2", 30),
        (204, "p3", 40),
    )
    ordinary: int = _U
    exchanging: str = ""
    """The partition that is about to be exchanged: until it is, u takes only what belongs there."""

    def takes(self, p: int | None) -> bool:
        """Whether u takes a row."""
        return not self.exchanging or self.locate(p) == next(
            pid for pid, name, _ in self.partitions if name == self.exchanging
        )

    def locate(self, p: int | None) -> int | None:
        return next((pid for pid, _, bound in self.partitions if p is None or p < bound), None)


class PartitionHistory:
    """Random transactions and partition DDL.

    `transactions`: (commit_ts, [row changes], DDL or None) in order.
    """

    def __init__(self, seed: int, keyed: bool, *, locks: bool = True) -> None:
        """`locks`: TiDB's metadata locks are on, so that binlogs may name an older version than
        that of the definition, and landing asks TiKV; without them it lands as it did before it
        asked.
        """
        self._locks = locks
        self._writes: dict[bytes, list[tuple[int, int]]] = {}
        """By key, (start_ts, kind) of what TiKV has."""
        self._version_at: dict[int, int] = {}
        """By commit_ts, the newest version then."""
        self._rng = random.Random(seed)
        self._keyed = keyed
        self._versions = {1: Definition()}
        self._version = 1
        self._ts = FIRST_TS
        self._next_id = 300
        self._rowids: dict[int, int] = {}
        self.stored: dict[int, list[Row]] = {}
        self.events: list[tuple[int, list[tuple[Any, ...]], dict[str, Any] | None]] = []

    def table(self, definition: Definition) -> Table:
        """t as of a definition."""
        definitions = [
            {"id": pid, "name": {"O": name, "L": name}, "less_than": [str(bound)]}
            for pid, name, bound in definition.partitions
        ]
        return replace(
            self.ordinary(_T, "t"),
            partition={
                "type": 1,
                "expr": "`p`",
                "enable": True,
                "num": len(definitions),
                "definitions": definitions,
            },
        )

    def ordinary(self, table_id: int, name: str = "u") -> Table:
        """u under an id."""
        key = (
            (Index(1, "PRIMARY", (("v", 1, -1), ("p", 0, -1)), unique=True, primary=True),)
            if self._keyed
            else ()
        )
        flag = 1 if self._keyed else 0
        return Table(
            table_id, 1, "d", name, (Column(1, "p", 0, 3, flag), Column(2, "v", 1, 3, flag)), key
        )

    def grow(self, count: int) -> None:
        """Rows, and now and then a DDL between them."""
        for _ in range(count):
            if self._rng.random() < 0.12:
                self.ddl(
                    self._rng.choice(
                        [
                            Action.DROP_PARTITION,
                            Action.TRUNCATE_PARTITION,
                            Action.EXCHANGE_PARTITION,
                            Action.ADD_PARTITION,
                        ]
                    ),
                    3,
                )
            else:
                self.rows()

    def rows(self, planned_by: Definition | None = None) -> None:
        """One transaction by a session that has the newest version or the one before.

        `planned_by`: of which it knows only since its statement was planned.
        """
        version = self._version - (
            self._rng.random() < 0.4 and self._version > 1 and planned_by is None
        )
        definition = planned_by or self._versions[version]
        if self._locks and planned_by is None and self._rng.random() < 0.5:
            version = self._rng.randint(max(1, version - 3), version)
        commit_ts = self._ts + self._rng.randint(2, 9)
        start_ts = self._ts + 1 if planned_by else commit_ts - 1
        written: list[tuple[int, int, int]] = []
        told = self._locks or planned_by is None
        changes = [
            c
            for _ in range(self._rng.randint(1, 4))
            for c in self._change(definition, written, is_told=told)
        ]
        if changes:
            self._ts = commit_ts
            self._version_at[commit_ts] = self._version
            for physical_id, rowid, kind in written:
                key = b"t" + encode_int(physical_id) + b"_r" + encode_int(rowid)
                self._writes.setdefault(key, []).append((start_ts, kind))
            rows = [
                (commit_ts, start_ts, n, table_id, version, kind, row)
                for n, (table_id, kind, row) in enumerate(changes)
            ]
            self.events.append((commit_ts, rows, None))

    def ask(self, keys: Collection[bytes]) -> dict[bytes, Mvcc]:
        """What TiKV has of keys; now and then a lock that isn't resolved yet."""
        found = {}
        for key in keys:
            writes = dict(self._writes.get(key, ()))  # of one transaction the last one
            *rest, last = [
                *(MvccWrite(kind, start_ts, start_ts + 1) for start_ts, kind in writes.items()),
                None,
            ]
            lock = None
            if rest and self._rng.random() < 0.3:
                write = rest.pop()
                lock = MvccLock(write.start_ts, b"k", 1, write.kind)
            found[key] = Mvcc(lock, tuple(write for write in (*rest, last) if write is not None))
        return found

    def _change(
        self, definition: Definition, written: list[tuple[int, int, int]], *, is_told: bool = True
    ) -> list[tuple[int, int, bytes]]:
        """`written` gets what TiKV notes: physical id, hidden row id, and 0 for a put, 1 for a
        delete. `is_told`: TiKV or the named version tells where the session writes; else only what
        it changes does.
        """
        kinds = [INSERT, INSERT, UPDATE, UPDATE, DELETE] if is_told else [UPDATE, DELETE]
        rng, of_t = self._rng, self._rng.random() < 0.8
        table = self.table(definition) if of_t else self.ordinary(definition.ordinary)
        places = [pid for pid, _, _ in definition.partitions] if of_t else [definition.ordinary]
        seen = [
            (pid, row)
            for pid in places
            for row in self.stored.get(pid, [])
            if not of_t or definition.locate(row["p"]) == pid
        ]
        if not is_told:
            now = {pid for pid, _, _ in self._versions[self._version].partitions}
            seen = [(pid, row) for pid, row in seen if of_t and pid not in now]
            if not seen:
                return []
        kind = rng.choice(kinds if seen else [INSERT])
        new = self._row()
        target = definition.locate(new["p"]) if of_t else definition.ordinary
        if kind != INSERT:
            pid, old = rng.choice(seen)
            new = old | rng.choice([{"p": new["p"]}, {"v": new["v"]}])
            target = definition.locate(new["p"]) if of_t else pid
        if target is None or (not of_t and not definition.takes(new["p"])):
            return []
        others = [r for r in self.stored.get(target, []) if kind == INSERT or r is not old]
        if (
            self._keyed
            and kind != DELETE
            and any((r["p"], r["v"]) == (new["p"], new["v"]) for r in others)
        ):
            # unique in its partition, and so in the table; but for rows of one that is about to go
            return []
        if kind != INSERT:
            self.stored[pid].remove(old)
            if kind == DELETE or target != pid:
                written.append((pid, old[ROWID_NAME], 1))
        if kind == DELETE:
            return [(table.id, DELETE, encode_delete(table, old))]
        if kind == INSERT or target != pid:
            self._rowids[target] = self._rowids.get(target, 0) + 1
            new = new | {ROWID_NAME: self._rowids[target]}
        self.stored.setdefault(target, []).append(new)
        written.append((target, new[ROWID_NAME], 0))
        if kind == INSERT:
            return [(table.id, INSERT, encode_insert(table, new))]
        if target != pid:
            return [
                (table.id, INSERT, encode_insert(table, new)),
                (table.id, DELETE, encode_delete(table, old)),
            ]
        return [(table.id, UPDATE, encode_update(table, old, new))]

    def _row(self) -> Row:
        v = self._rng.randint(0, 2)
        return {
            "p": (
                self._rng.choice([None, *range(0, 40, 4)])
                if not self._keyed
                else self._rng.randrange(0, 40, 4)
            ),
            "v": v,
        }

    def ddl(self, kind: int, rows_between: int) -> None:
        """DDL of one of these kinds, with so many transactions at most between two of its steps."""
        now = self._versions[self._version]
        chosen = self._rng.randrange(len(now.partitions))
        pid, name, bound = now.partitions[chosen]
        self._next_id += 1
        if kind == Action.DROP_PARTITION and len(now.partitions) < 2:
            return
        if kind == Action.ADD_PARTITION:
            name, bound = f"p{self._next_id}", now.partitions[-1][2] + 10
            if bound > 40:
                return
            after = replace(now, partitions=(*now.partitions, (self._next_id, name, bound)))
            text = f"ALTER TABLE `t` ADD PARTITION (PARTITION `{name}` VALUES LESS THAN ({bound}))"
            steps = 1
        elif kind == Action.DROP_PARTITION:
            after = replace(now, partitions=tuple(p for p in now.partitions if p[0] != pid))
            text, steps = f"ALTER TABLE `t` DROP PARTITION `{name}`", 3
        elif kind == Action.TRUNCATE_PARTITION:
            after = replace(
                now,
                partitions=tuple(
                    (self._next_id, name, bound) if p[0] == pid else p for p in now.partitions
                ),
            )
            text, steps = f"ALTER TABLE `t` TRUNCATE PARTITION `{name}`", 1
        else:
            low = now.partitions[chosen - 1][2] if chosen else -1
            if any(
                (row["p"] is None and chosen)
                or (row["p"] is not None and not low <= row["p"] < bound)
                for row in self.stored.get(now.ordinary, [])
            ):
                return  # TiDB refuses rows that don't belong there
            after = Definition(
                tuple((now.ordinary, name, bound) if p[0] == pid else p for p in now.partitions),
                pid,
            )
            text, steps = f"ALTER TABLE `t` EXCHANGE PARTITION `{name}` WITH TABLE `u`", 2
        began, versions = self._ts, []
        for step in range(steps):
            if step:
                for _ in range(
                    self._rng.randint(0, rows_between) if kind != Action.EXCHANGE_PARTITION else 0
                ):  # TiDB keeps foreign rows out of u meanwhile
                    self.rows()
            self._version += 1
            versions.append(self._version)
            self._versions[self._version] = (
                after
                if kind != Action.EXCHANGE_PARTITION or step == steps - 1
                else replace(now, exchanging=name)
            )
        self._ts += self._rng.randint(1, 9)
        tables = {_T: self.table(after)}
        before = {_T: self.table(now)}
        if kind == Action.EXCHANGE_PARTITION:
            tables |= {now.ordinary: None, pid: self.ordinary(pid)}
            before[now.ordinary] = self.ordinary(now.ordinary)
        self.events.append(
            (
                self._ts,
                [],
                {
                    "commit_ts": self._ts,
                    "start_ts": self._ts - 1,
                    "job_id": self._version,
                    "query": text,
                    "schema_state": 0,
                    "type": int(kind),
                    "schema_version": self._version,
                    "schema_name": "d",
                    "table_name": "t",
                    "effect": DdlEffect({}, tables).to_json(),
                    "began_ts": began,
                    "versions": versions,
                    "finished_ts": self._ts + 1,
                    "before_it": {str(i): t.to_json() for i, t in before.items()},
                },
            )
        )
        if kind == Action.TRUNCATE_PARTITION and self._rng.random() < 0.7:
            self.rows(now)

    def settle(self) -> None:
        """No session is behind any more."""
        now = self._versions[self._version]
        self.final = {
            "t": sorted(
                (
                    (r["p"], r["v"])
                    for pid, _, _ in now.partitions
                    for r in self.stored.get(pid, [])
                ),
                key=repr,
            ),
            "u": sorted(((r["p"], r["v"]) for r in self.stored.get(now.ordinary, [])), key=repr),
        }

    def land(self, url: str, sizes: list[int]) -> RelayLog:
        """Windows of so many events each, over and over, as landing writes them."""
        relay = RelayLog.open(url)
        tables = {_T: self.table(Definition()), _U: self.ordinary(_U)}
        done: list[dict[str, Any]] = []
        lo, version, dropping = FIRST_TS - 5, 1, False
        for chosen in self._cut(sizes):
            rows = [row for _, own, _ in chosen for row in own]
            ddls = [ddl for _, _, ddl in chosen if ddl is not None]
            hi = chosen[-1][0]
            used = {row[3] for row in rows}
            oldest = {i: min(row[4] for row in rows if row[3] == i) for i in used}
            moved = [
                d
                for d in done
                if any(
                    str(i) in d["effect"]["tables"]
                    and (oldest[i] < d["schema_version"] or lo < d["finished_ts"] + 100)
                    for i in used
                )
            ]
            wanted = used.union(*(map(int, d["effect"]["tables"]) for d in [*ddls, *moved]))
            part = None
            if rows:
                batch = pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(zip(*rows), PART_SCHEMA)],
                    schema=PART_SCHEMA,
                )
                part = relay.write_part(lo, hi, "t", 0, [batch])
            documents = {str(i): tables[i].to_json() for i in wanted if i in tables}
            for ddl in ddls:
                version = ddl["schema_version"]
                for i, after in DdlEffect.from_json(ddl["effect"]).tables.items():
                    tables.pop(i, None) if after is None else tables.update({i: after})
            done += [
                {
                    **{
                        k: d[k]
                        for k in (
                            "type",
                            "job_id",
                            "schema_version",
                            "versions",
                            "effect",
                            "began_ts",
                            "finished_ts",
                        )
                    },
                    "before": d.pop("before_it"),
                }
                for d in ddls
                if d["type"] in MOVES_ROWS
            ]
            coming = [
                ddl
                for _, _, ddl in self.events
                if ddl is not None and ddl["commit_ts"] > lo and len(ddl["versions"]) == 3
            ]
            known = max((self._version_at[row[0]] for row in rows), default=0)
            dropping = dropping or any(known >= ddl["versions"][0] for ddl in coming[:1])
            window = WindowRecord(
                lo,
                hi,
                7,
                "t",
                0,
                len(chosen),
                len(rows),
                version,
                (part,) if part else (),
                documents,
                tuple(ddls),
                moved=tuple(moved),
                relaxed={str(_T): []} if dropping and _T in used else {},
            )
            moves = [FinishedRowMove.from_json(move) for move in done]
            if self._locks:
                schema, parts = DefinitionResolver(relay, self.ask, lambda: 0).resolve(
                    RecordedSchema.from_window(window),
                    moves,
                    window.parts,
                    (lo, hi, "t"),
                    to_come=lambda _, at=version: [
                        self.table(d) for v, d in self._versions.items() if v > at
                    ],
                )
                window = replace(schema.write_to(window), parts=parts)
            relay.commit(window)
            dropping = dropping and not ddls
            lo = hi
        return relay

    def _cut(self, sizes: list[int]) -> Iterator[list[Any]]:
        at = n = 0
        while at < len(self.events):
            size = max(1, sizes[n % len(sizes)])
            yield self.events[at : at + size]
            at += size
            n += 1


def create_statements(keyed: bool) -> list[str]:
    """The statements that make the tables."""
    return [
        statement.replace("{key}", ", PRIMARY KEY (v, p)" if keyed else "") for statement in CREATE
    ]
