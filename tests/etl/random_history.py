"""Random transactions over a few small tables of every key shape, as a relay log and as a plain
model of the rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord
from sluice.tidb.codec.float import format_float
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table

Row = dict[str, Any]

_CI = {"charset": "utf8mb4", "collate": "utf8mb4_general_ci"}
_BIN = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}


def _partitions(first_id: int) -> dict[str, Any]:
    bounds = ("p0", "2"), ("p1", "100")
    definitions = [
        {"id": number, "name": {"O": name, "L": name}, "less_than": [bound]}
        for number, (name, bound) in enumerate(bounds, first_id)
    ]
    return {"type": 1, "expr": "`p`", "enable": True, "num": 2, "definitions": definitions}


TABLES = {
    "account": Table(
        101,
        1,
        "rnd",
        "account",
        (
            Column(1, "id", 0, 3, 3),
            Column(2, "email", 1, 15, 0, 20, **_CI),
            Column(3, "v", 2, 3),
        ),
        (Index(1, "email", (("email", 1, -1),), unique=True),),
        pk_is_handle=True,
    ),
    "plain": Table(
        102, 1, "rnd", "plain", (Column(1, "id", 0, 3, 3), Column(2, "v", 1, 3)), pk_is_handle=True
    ),
    "ci": Table(
        103,
        1,
        "rnd",
        "ci",
        (
            Column(1, "k", 0, 15, 3, 20, **_CI),
            Column(2, "v", 1, 3),
        ),
        (Index(1, "PRIMARY", (("k", 0, -1),), unique=True, primary=True),),
        is_common_handle=True,
    ),
    "nonclustered": Table(
        104,
        1,
        "rnd",
        "nonclustered",
        (
            Column(1, "a", 0, 15, 3, 20, **_BIN),
            Column(2, "b", 1, 3, 3),
            Column(3, "v", 2, 3),
        ),
        (Index(1, "PRIMARY", (("a", 0, -1), ("b", 1, -1)), unique=True, primary=True),),
    ),
    "unique": Table(
        105,
        1,
        "rnd",
        "unique",
        (
            Column(1, "a", 0, 3, 1),
            Column(2, "b", 1, 3),
            Column(3, "v", 2, 3),
        ),
        (Index(1, "a", (("a", 0, -1),), unique=True), Index(2, "b", (("b", 1, -1),), unique=True)),
    ),
    "heap": Table(
        106,
        1,
        "rnd",
        "heap",
        (
            Column(1, "t", 0, 15, 0, 20, **_CI),
            Column(2, "f", 1, 4),
            Column(3, "v", 2, 3),
        ),
    ),
    "parted": Table(
        107,
        1,
        "rnd",
        "parted",
        (Column(1, "p", 0, 3), Column(2, "v", 1, 3)),
        partition=_partitions(900),
    ),
    "parted_key": Table(
        108,
        1,
        "rnd",
        "parted_key",
        (Column(1, "p", 0, 3, 3), Column(2, "k", 1, 15, 3, 20, **_BIN), Column(3, "v", 2, 3)),
        (Index(1, "PRIMARY", (("k", 1, -1), ("p", 0, -1)), unique=True, primary=True),),
        partition=_partitions(902),
    ),
}
CREATE = (
    "CREATE DATABASE rnd CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    (
        "CREATE TABLE rnd.account (id int PRIMARY KEY, email varchar(20) COLLATE"
        " utf8mb4_general_ci, v int, UNIQUE (email))"
    ),
    "CREATE TABLE rnd.plain (id int PRIMARY KEY, v int)",
    "CREATE TABLE rnd.ci (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v int)",
    "CREATE TABLE rnd.nonclustered (a varchar(20), b int, v int, PRIMARY KEY (a, b))",
    "CREATE TABLE rnd.`unique` (a int NOT NULL, b int, v int, UNIQUE (a), UNIQUE (b))",
    "CREATE TABLE rnd.heap (t varchar(20) COLLATE utf8mb4_general_ci, f float, v int)",
    (
        "CREATE TABLE rnd.parted (p int, v int) PARTITION BY RANGE (p) (PARTITION p0 VALUES LESS"
        " THAN (2), PARTITION p1 VALUES LESS THAN (100))"
    ),
    (
        "CREATE TABLE rnd.parted_key (p int, k varchar(20), v int, PRIMARY KEY (k, p)) PARTITION BY"
        " RANGE (p) (PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN (100))"
    ),
)
_WORDS = ("a", "A", "b", "B ", "é", "E", "'", "\\", "\t")


def _shown(value: Any) -> Any:
    """A FLOAT arrives as TiDB shows it."""
    return float(np.float32(format_float(value))) if isinstance(value, float) else value


@dataclass
class History:
    """`rows`: the model, by table and row id.

    `transactions`: (commit_ts, [(table, kind, encoded row)]).
    """

    seed: int
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    transactions: list[tuple[int, list[tuple[str, int, bytes]]]] = field(default_factory=list)
    _next: int = 1
    _local: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._ts = 1 << 40

    def grow(self, transactions: int) -> None:
        """Add random transactions."""
        for _ in range(transactions):
            changes: list[tuple[str, int, bytes]] = []
            for _ in range(self._random.randint(1, 5)):
                self._change(self._random.choice(list(TABLES)), changes)
            if changes:
                self._ts += self._random.randint(1, 3)
                self.transactions.append((self._ts, changes))

    def land(self, url: str, sizes: Sequence[int], after: int = (1 << 40) - 5) -> RelayLog:
        """Write windows of about `sizes` transactions each, over and over, of what was committed
        after that TSO.
        """
        relay = RelayLog.open(url)
        lo, n = after, 0
        at = sum(ts <= after for ts, _ in self.transactions)
        while at < len(self.transactions):
            chosen = self.transactions[at : at + max(1, sizes[n % len(sizes)])]
            at += len(chosen)
            n += 1
            hi = chosen[-1][0]
            rows = [
                (ts, ts - 1, position, TABLES[name].id, 1, kind, row)
                for ts, changes in chosen
                for position, (name, kind, row) in enumerate(changes)
            ]
            batch = pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(zip(*rows), PART_SCHEMA)], schema=PART_SCHEMA
            )
            part = relay.write_part(lo, hi, "t", 0, [batch])
            assert part is not None
            tables = {str(table.id): table.to_json() for table in TABLES.values()}
            relay.commit(
                WindowRecord(lo, hi, 7, "t", 0, len(chosen), len(rows), 1, (part,), tables)
            )
            lo = hi
        return relay

    def expected(self, name: str) -> list[tuple[Any, ...]]:
        """The model's rows of a table, sorted."""
        names = [column.name for column in TABLES[name].columns]
        return sorted(
            (tuple(_shown(row[n]) for n in names) for row in self.rows[name].values()), key=repr
        )

    def with_rowid(self, name: str, number: int, row: Row) -> Row:
        """A row with TiDB's hidden id; each partition counts for itself."""
        if not bool(TABLES[name].partition):
            return row | {ROWID_NAME: number}
        partition = name, _partition(row)
        counted = self._local.setdefault(partition, {})
        return row | {ROWID_NAME: counted.setdefault(number, len(counted) + 1)}

    def _change(self, name: str, changes: list[tuple[str, int, bytes]]) -> None:
        table, rows, rng = TABLES[name], self.rows[name], self._random
        kind = rng.choice([INSERT, INSERT, UPDATE, UPDATE, DELETE, "swap"] if rows else [INSERT])
        if kind == "swap":
            self._swap(name, changes)
        elif kind == INSERT:
            row = self._row(name)
            if self._fits(name, row, None):
                rows[self._next] = row
                changes.append(
                    (name, INSERT, encode_insert(table, self.with_rowid(name, self._next, row)))
                )
                self._next += 1
        else:
            rowid = rng.choice(list(rows))
            old = rows[rowid]
            if kind == DELETE:
                del rows[rowid]
                changes.append(
                    (name, DELETE, encode_delete(table, self.with_rowid(name, rowid, old)))
                )
                return
            new = self._row(name) if rng.random() < 0.5 else old | {"v": rng.randint(0, 5)}
            if self._fits(name, new, rowid):
                self._update(name, rowid, new, changes)

    def _update(
        self, name: str, rowid: int, new: Row, changes: list[tuple[str, int, bytes]]
    ) -> None:
        """TiDB writes a changed handle as delete and insert."""
        table, old = TABLES[name], self.rows[name][rowid]
        self.rows[name][rowid] = new
        moved = table.handle_kind != "heap" and any(
            old[key] != new[key] for key in table.primary_key
        )
        # there TiDB adds the row before it removes it
        if table.partition and _partition(old) != _partition(new):
            changes.append((name, INSERT, encode_insert(table, self.with_rowid(name, rowid, new))))
            changes.append((name, DELETE, encode_delete(table, self.with_rowid(name, rowid, old))))
        elif moved:
            changes.append((name, DELETE, encode_delete(table, self.with_rowid(name, rowid, old))))
            changes.append((name, INSERT, encode_insert(table, self.with_rowid(name, rowid, new))))
        else:
            changes.append(
                (
                    name,
                    UPDATE,
                    encode_update(
                        table, self.with_rowid(name, rowid, old), self.with_rowid(name, rowid, new)
                    ),
                )
            )

    def _swap(self, name: str, changes: list[tuple[str, int, bytes]]) -> None:
        """Two rows exchange their unique values in one statement: neither order of the two updates
        is valid by itself.
        """
        column = {"account": "email", "unique": "b", "nonclustered": "b"}.get(name)
        if column is None or len(self.rows[name]) < 2 or name == "nonclustered":
            return
        one, two = self._random.sample(list(self.rows[name]), 2)
        a, b = self.rows[name][one], self.rows[name][two]
        self._update(name, one, a | {column: b[column]}, changes)
        self._update(name, two, b | {column: a[column]}, changes)

    def _row(self, name: str) -> Row:
        rng = self._random
        number, word = rng.randint(0, 8), rng.choice(_WORDS)
        row: Row = {"v": rng.choice([None, 0, 1, 2])}
        match name:
            case "account":
                row |= {"id": number, "email": rng.choice([None, word])}
            case "plain":
                row |= {"id": number}
            case "ci":
                row |= {"k": word}
            case "nonclustered":
                row |= {"a": word, "b": rng.randint(0, 2)}
            case "unique":
                row |= {"a": number, "b": rng.choice([None, number, number + 1])}
            case "parted":
                row |= {"p": rng.choice([None, *range(4)])}
            case "parted_key":
                row |= {"p": rng.randint(0, 3), "k": word}
            case "heap":
                row |= {
                    "t": rng.choice([None, word]),
                    "f": rng.choice([None, 0.5, 1.100000023841858, 3.4028234663852886e38]),
                }
        return row

    def _fits(self, name: str, row: Row, own: int | None) -> bool:
        others = [other for rowid, other in self.rows[name].items() if rowid != own]
        keys = {
            "account": (("id",), ("email",)),
            "plain": (("id",),),
            "ci": (("k",),),
            "nonclustered": (("a", "b"),),
            "unique": (("a",), ("b",)),
            "heap": (),
            "parted": (),
            "parted_key": (("k", "p"),),
        }[name]
        for key in keys:
            ci = name in ("account", "ci")
            mine = _collated([row[k] for k in key], ci)
            if None not in mine and any(
                _collated([other[k] for k in key], ci) == mine for other in others
            ):
                return False
        return True


def _partition(row: Row) -> int:
    return 0 if row["p"] is None or row["p"] < 2 else 1


def _collated(values: list[Any], ci: bool) -> list[Any]:
    def one(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.rstrip(" ")
        return value.upper().replace("É", "E") if ci else value

    return [one(value) for value in values]
