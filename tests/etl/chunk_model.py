"""Chunks of a random history, as a job would read them from the upstream at a timestamp.

What a downstream must hold afterwards; and damage done to a downstream before. Shares nothing with
what writes chunks.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import pymysql

from sluice.relay import AlignedChunk, ChunkReady, LoadFile, RelayLog
from sluice.tidb.codec.float import format_float
from tests.etl.random_history import TABLES, History, _collated, _shown

Row = dict[str, Any]
KEYS = {
    "account": ["id"], "plain": ["id"], "ci": ["k"], "nonclustered": ["a", "b"], "unique": ["a"],
    "parted_key": ["k", "p"], "heap": [], "parted": [],
}  # fmt: skip
WITHOUT_KEY = [name for name, key in KEYS.items() if not key]
"""By which tables are cut: a column of the key, and whether it is text whose case doesn't count."""


@dataclass(frozen=True)
class Cut:
    """Rows of a table with `low` <= `column` < `high`; None: no limit. "" as column: all."""

    table: str
    column: str = ""
    low: Any = None
    high: Any = None

    @property
    def condition(self) -> str:
        terms = [(">=", self.low), ("<", self.high)]
        return " AND ".join(
            f"`{self.column}` {mark} {_literal(value)}"
            for mark, value in terms
            if value is not None
        )

    def holds(self, row: Row) -> bool:
        if not self.column:
            return True
        value, low, high = (
            None if one is None else _collated([one], self.table == "ci")[0]
            for one in (row[self.column], self.low, self.high)
        )
        return (low is None or value >= low) and (high is None or value < high)


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def cut(name: str, rng: random.Random) -> list[Cut]:
    """A table in pieces, in any order."""
    if name in WITHOUT_KEY or rng.random() < 0.2:
        return [Cut(name)]
    column = rng.choice(KEYS[name])
    values = ["b", "e", "c"] if column in ("k", "a") and name != "unique" else [1, 2, 4, 6]
    edges: list[Any] = [None, *sorted(rng.sample(values, rng.randint(0, 2))), None]
    pieces = [
        Cut(name, column if low is not None or high is not None else "", low, high)
        for low, high in itertools.pairwise(edges)
    ]
    rng.shuffle(pieces)
    return pieces


@dataclass
class Told:
    """A history with what every table held after each of its transactions."""

    history: History
    snapshots: list[tuple[int, dict[str, dict[int, Row]]]]

    @classmethod
    def of(cls, seed: int, transactions: int) -> Told:
        history = History(seed)
        snapshots = [(0, copy.deepcopy(history.rows))]
        while len(history.transactions) < transactions:
            before = len(history.transactions)
            history.grow(1)
            if len(history.transactions) > before:
                snapshots.append((history.transactions[-1][0], copy.deepcopy(history.rows)))
        return cls(history, snapshots)

    def rows_at(self, ts: int, piece: Cut) -> list[Row]:
        """The upstream's rows of a piece as of a timestamp."""
        rows = [found for at, found in self.snapshots if at <= ts][-1][piece.table]
        return [row for row in rows.values() if piece.holds(row)]

    def expected(self, ts: int, piece: Cut) -> list[tuple[Any, ...]]:
        """As they are downstream, sorted."""
        names = [column.name for column in TABLES[piece.table].columns]
        return sorted(
            (tuple(_shown(row[n]) for n in names) for row in self.rows_at(ts, piece)), key=repr
        )


def found(connection: pymysql.connections.Connection, piece: Cut) -> list[tuple[Any, ...]]:
    """The downstream's rows of a piece, sorted."""
    columns = TABLES[piece.table].columns
    names = ", ".join(f"`{c.name}`+0e0" if c.kind == "float" else f"`{c.name}`" for c in columns)
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
        cursor.execute(f"SELECT {names} FROM rnd.`{piece.table}`")
        rows = [tuple(row) for row in cursor.fetchall()]
        cursor.execute("ROLLBACK")
    at = [column.name for column in columns]
    return sorted((row for row in rows if piece.holds(dict(zip(at, row)))), key=repr)


def make_ready(
    relay: RelayLog, told: Told, piece: Cut, at_ts: int, number: int = 0, **more: Any
) -> AlignedChunk:
    """An aligned chunk of which the rows are read already, in two files."""
    asked = appoint(relay, piece, at_ts, number, **more)
    deliver(relay, told, piece, asked)
    return asked


def appoint(relay: RelayLog, piece: Cut, at_ts: int, number: int = 0, **more: Any) -> AlignedChunk:
    """An aligned chunk without an outcome."""
    asked = AlignedChunk(
        at_ts, more.pop("job", "job"), number, TABLES[piece.table].id, "rnd", piece.table,
        condition=piece.condition, key=(piece.column,) if piece.column else (), **more,
    )  # fmt: skip
    relay.aligned_chunks.make(asked)
    return asked


def deliver(relay: RelayLog, told: Told, piece: Cut, asked: AlignedChunk) -> None:
    """The rows of an aligned chunk, and its outcome."""
    rows = told.rows_at(asked.at_ts, piece)
    loads = [
        _write(relay, f"jobs/{asked.job}/{asked.at_ts}-{n}.load", TABLES[piece.table], some)
        for n, some in enumerate((rows[::2], rows[1::2]))
        if some
    ]
    relay.aligned_chunks.settle(
        asked.at_ts, ChunkReady(TABLES[piece.table].to_json(), asked.at_ts, tuple(loads))
    )


def _write(relay: RelayLog, path: str, table: Any, rows: Sequence[Row]) -> LoadFile:
    names = [column.name for column in table.columns]
    text = "".join("\t".join(_field(row[name]) for name in names) + "\n" for row in rows).encode()
    relay.storage.create(path, text)
    layout = {"columns": names, "bits": [], "hex": []}
    return LoadFile(path, layout, len(rows), 0, len(text), google_crc32c.value(text))


def _field(value: Any) -> str:
    match value:
        case None:
            return "\\N"
        case float():
            return format_float(value)
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def damage(connection: pymysql.connections.Connection, name: str, rng: random.Random) -> None:
    """Rows go, change, and come that the upstream never had, with unique values of others."""
    with connection.cursor() as cursor:
        for _ in range(rng.randint(1, 4)):
            match rng.choice(["delete", "delete all", "change", "add"]):
                case "delete":
                    cursor.execute(f"DELETE FROM rnd.`{name}` LIMIT {rng.randint(1, 3)}")
                case "delete all":
                    cursor.execute(f"DELETE FROM rnd.`{name}`")
                case "change":
                    cursor.execute(
                        f"UPDATE rnd.`{name}` SET v = {rng.randint(50, 60)} LIMIT"
                        f" {rng.randint(1, 3)}"
                    )
                    if name == "account":
                        cursor.execute(
                            f"UPDATE IGNORE rnd.account SET email = '{rng.choice('abe')}'"
                        )
                    if name == "unique":
                        cursor.execute("UPDATE IGNORE rnd.`unique` SET b = a + 1")
                case "add":
                    row = History(rng.randint(0, 999))._row(name) | {"v": 77}
                    names = ", ".join(f"`{n}`" for n in row)
                    marks = ", ".join(["%s"] * len(row))
                    cursor.execute(
                        f"INSERT IGNORE INTO rnd.`{name}` ({names}) VALUES ({marks})",
                        list(row.values()),
                    )
        cursor.execute("COMMIT")
