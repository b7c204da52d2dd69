"""Parts of which shapes of traffic are made: columns, values, tables, and their histories."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table

SCHEMA = "shapes"

TEXT: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}

CI: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_general_ci"}

BYTES: dict[str, Any] = {"charset": "binary", "collate": "binary"}

KEY = column_types.FLAG_NOT_NULL | column_types.FLAG_PRIMARY_KEY

WORDS = (
    "north",
    "South",
    "été",
    "river",
    "Stone",
    "o'clock",
    "tab\there",
    "plain",
    "éclair",
    "quiet",
)

Row = dict[str, Any]

Make = Callable[[random.Random, int], Row]


@dataclass(frozen=True, slots=True)
class Kind:
    """Tables that are alike.

    `make`: the values of a new row, given a number that no other row of the table has.
    """

    tables: tuple[Table, ...]
    make: Make
    changed: tuple[str, ...]
    """The columns that an update gives new values, as `make` does."""
    weight: int = 1
    """Share of the traffic that goes there."""
    only_inserts: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape; `rows`: there at first, over all tables.

    `changes`: behind them; `batch`: how many are prepared together. `window`: transactions of a
    window.
    """

    kinds: tuple[Kind, ...]
    rows: int = 20_000
    changes: int = 60_000
    batch: int = 25_000
    window: int = 250


@dataclass(slots=True)
class History:
    """Transactions as (table, kind of change, encoded row), and the rows of each table.

    The rows are how many each of their tables holds in the end.
    """

    transactions: list[list[tuple[Table, int, bytes]]] = field(default_factory=list)
    first: int = 0
    """Number of the transactions that only fill the tables."""
    counts: dict[str, int] = field(default_factory=dict)


def history(shape: Shape, seed: int = 1) -> History:
    """Yield random traffic of a shape: a transaction has four changes.

    Five updates come to two inserts and two deletes.
    """
    rng = random.Random(seed)
    places = [_Place(kind, table) for kind in shape.kinds for table in kind.tables]
    weights = [place.kind.weight for place in places]
    found = History()

    def add(count: int, kinds: tuple[int, ...]) -> None:
        for _ in range(count // 4):
            chosen = rng.choices(places, weights, k=4)
            found.transactions.append([place.change(rng, rng.choice(kinds)) for place in chosen])

    add(shape.rows, (INSERT,))
    found.first = len(found.transactions)
    add(shape.changes, (UPDATE,) * 5 + (INSERT, DELETE) * 2)
    found.counts = {place.table.full_name: len(place.rows) for place in places if place.inserted}
    return found


class _Place:
    """A table and its rows."""

    def __init__(self, kind: Kind, table: Table) -> None:
        self.kind, self.table = kind, table
        self.rows: list[Row] = []
        self.inserted = 0

    def change(self, rng: random.Random, what: int) -> tuple[Table, int, bytes]:
        if what == INSERT or not self.rows or self.kind.only_inserts:
            self.inserted += 1
            row = self.kind.make(rng, self.inserted) | {ROWID_NAME: self.inserted}
            self.rows.append(row)
            return self.table, INSERT, encode_insert(self.table, row)
        at = rng.randrange(len(self.rows))
        old = self.rows[at]
        if what == DELETE:
            self.rows[at] = self.rows[-1]
            self.rows.pop()
            return self.table, DELETE, encode_delete(self.table, old)
        fresh = self.kind.make(rng, old[ROWID_NAME])
        self.rows[at] = new = old | {name: fresh[name] for name in self.kind.changed}
        return self.table, UPDATE, encode_update(self.table, old, new)


def make_table(
    number: int, name: str, *columns: tuple[str, dict[str, Any]], keys: int = 1, index: str = ""
) -> Table:
    """Return a table whose first `keys` columns are the primary key.

    One integer is the handle, others are clustered.
    """
    made = [
        Column(n, column, n - 1, **{"flag": KEY if n <= keys else 0, "version": 2, **more})
        for n, (column, more) in enumerate(columns, 1)
    ]
    is_handle = keys == 1 and made[0].kind == "int"
    indexes = []
    if keys and not is_handle:
        names = tuple((column.name, column.offset, -1) for column in made[:keys])
        indexes.append(Index(1, "PRIMARY", names, unique=True, primary=True))
    if index:
        at = next(column for column in made if column.name == index)
        indexes.append(Index(2, index, ((index, at.offset, -1),)))
    return Table(
        number,
        1,
        SCHEMA,
        name,
        tuple(made),
        tuple(indexes),
        "utf8mb4",
        "utf8mb4_bin",
        pk_is_handle=is_handle,
        is_common_handle=keys > 0 and not is_handle,
        common_handle_version=1,
    )


def int_column(**more: Any) -> dict[str, Any]:
    """Return the attributes of an INT column."""
    return {"tp": column_types.INT, "flen": 11, **more}


def varchar_column(size: int = 60, **more: Any) -> dict[str, Any]:
    """Return the attributes of a VARCHAR column of `size` characters."""
    return {"tp": column_types.VARCHAR, "flen": size, **TEXT, **more}


def decimal_column(flen: int = 20, scale: int = 4) -> dict[str, Any]:
    """Return the attributes of a DECIMAL column."""
    return {"tp": column_types.DECIMAL, "flen": flen, "decimal": scale}


def datetime_column(fsp: int = 6) -> dict[str, Any]:
    """Return the attributes of a DATETIME column with `fsp` digits of a second."""
    return {"tp": column_types.DATETIME, "decimal": fsp}


def words(rng: random.Random, count: int = 3) -> str:
    """Return random words with blanks between."""
    return " ".join(rng.choices(WORDS, k=count))


def digits(rng: random.Random, groups: int) -> str:
    """Return groups of eleven random digits, as sysbench's columns hold them."""
    return "-".join(f"{rng.randrange(10**11):011}" for _ in range(groups))


def money(rng: random.Random, scale: int = 4) -> str:
    """Return a random decimal number of either sign."""
    return f"{rng.randint(-(10**9), 10**9)}.{rng.randrange(10**scale):0{scale}}"


def moment(rng: random.Random, fsp: int = 6) -> str:
    """Return a random date and time with `fsp` digits of a second."""
    text = f"20{rng.randint(10, 37)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} "
    text += f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    return f"{text}.{rng.randrange(10**fsp):0{fsp}}" if fsp else text


def groups(
    transactions: list[list[tuple[Table, int, bytes]]], size: int
) -> Iterator[list[list[tuple[Table, int, bytes]]]]:
    """Group the transactions, `size` at a time."""
    for first in range(0, len(transactions), size):
        yield transactions[first : first + size]
