"""Traffic of other shapes than sysbench's.

It is made-up tables, and random transactions over them as TiDB would write them. A shape has the
tables' definitions and a function for a row of each. `history` makes transactions of inserts,
updates and deletes that follow one another, with the rows that are there in the end.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table

SCHEMA = "shapes"
_TEXT: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
_CI: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_general_ci"}
_BYTES: dict[str, Any] = {"charset": "binary", "collate": "binary"}
_KEY = column_types.FLAG_NOT_NULL | column_types.FLAG_PRIMARY_KEY
_WORDS = (
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
    """`rows`: there at first, over all tables.

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
    """Random traffic of a shape: a transaction has four changes.

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


def _table(
    number: int, name: str, *columns: tuple[str, dict[str, Any]], keys: int = 1, index: str = ""
) -> Table:
    """Return a table whose first `keys` columns are the primary key.

    One integer is the handle, others are clustered.
    """
    made = [
        Column(n, column, n - 1, **{"flag": _KEY if n <= keys else 0, "version": 2, **more})
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


def _int(**more: Any) -> dict[str, Any]:
    return {"tp": column_types.INT, "flen": 11, **more}


def _varchar(size: int = 60, **more: Any) -> dict[str, Any]:
    return {"tp": column_types.VARCHAR, "flen": size, **_TEXT, **more}


def _decimal(flen: int = 20, scale: int = 4) -> dict[str, Any]:
    return {"tp": column_types.DECIMAL, "flen": flen, "decimal": scale}


def _datetime(fsp: int = 6) -> dict[str, Any]:
    return {"tp": column_types.DATETIME, "decimal": fsp}


def _words(rng: random.Random, count: int = 3) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def _digits(rng: random.Random, groups: int) -> str:
    return "-".join(f"{rng.randrange(10**11):011}" for _ in range(groups))


def _money(rng: random.Random, scale: int = 4) -> str:
    return f"{rng.randint(-(10**9), 10**9)}.{rng.randrange(10**scale):0{scale}}"


def _moment(rng: random.Random, fsp: int = 6) -> str:
    text = f"20{rng.randint(10, 37)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} "
    text += f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    return f"{text}.{rng.randrange(10**fsp):0{fsp}}" if fsp else text


def _sysbench() -> Shape:
    tables = tuple(
        _table(
            100 + n,
            f"sbtest{n}",
            ("id", _int()),
            ("k", _int()),
            ("c", {"tp": column_types.CHAR, "flen": 120, **_TEXT}),
            ("pad", {"tp": column_types.CHAR, "flen": 60, **_TEXT}),
            index="k",
        )
        for n in range(4)
    )

    def make(rng: random.Random, number: int) -> Row:
        return {
            "id": number,
            "k": rng.randrange(20_000),
            "c": _digits(rng, 10),
            "pad": _digits(rng, 5),
        }

    return Shape((Kind(tables, make, ("k", "c")),))


def _wide() -> Shape:
    kinds: tuple[tuple[dict[str, Any], Callable[[random.Random], Any]], ...] = (
        (_int(), lambda rng: rng.randrange(10**6)),
        (_varchar(30), lambda rng: rng.choice(_WORDS)),
        (_decimal(), _money),
        (_datetime(0), lambda rng: _moment(rng, 0)),
        (
            {"tp": column_types.BIGINT},
            lambda rng: None if rng.random() < 0.5 else rng.getrandbits(60),
        ),
    )
    columns = [(f"c{n}", kinds[n % 5][0]) for n in range(199)]

    def make(rng: random.Random, number: int) -> Row:
        return {"id": number} | {f"c{n}": kinds[n % 5][1](rng) for n in range(199)}

    table = _table(200, "wide", ("id", _int()), *columns)
    return Shape((Kind((table,), make, ("c0", "c1", "c2", "c3")),), 2_000, 16_000, 4_000)


def _json() -> Shape:
    def document(rng: random.Random) -> str:
        tags = ", ".join(f'"{word}"' for word in rng.choices(("red", "green", "blue", "été"), k=4))
        return (
            f'{{"id": {rng.randrange(10**9)}, "name": "{rng.choice(("ann", "bob", "zoë"))}",'
            f' "tags": [{tags}], "price": {rng.randrange(10**4)}.25, "address": {{"street":'
            f' "{_digits(rng, 2)}", "zip": null, "lines": [{rng.randrange(99)},'
            f" {rng.randrange(99)}, true]}}}}"
        )

    table = _table(
        210,
        "json",
        ("id", _int()),
        ("a", {"tp": column_types.JSON}),
        ("b", {"tp": column_types.JSON}),
    )
    kind = Kind((table,), lambda rng, n: {"id": n, "a": document(rng), "b": document(rng)}, ("a",))
    return Shape((kind,), 10_000, 30_000, 5_000)


def _blobs() -> Shape:
    table = _table(
        220,
        "blobs",
        ("id", _int()),
        ("data", {"tp": column_types.TEXT, **_BYTES}),
        ("note", {"tp": column_types.TEXT, **_TEXT}),
        ("digest", {"tp": column_types.CHAR, "flen": 16, **_BYTES}),
    )

    def make(rng: random.Random, number: int) -> Row:
        size = rng.choice((100, 500, 3000))
        return {
            "id": number,
            "data": rng.randbytes(size),
            "note": _words(rng, 20),
            "digest": rng.randbytes(16),
        }

    return Shape((Kind((table,), make, ("data", "digest")),), 6_000, 18_000, 3_000)


def _many(count: int = 300) -> Shape:
    """Return many small tables; their number is all that differs between two of these."""
    columns = (("id", _int()), ("v", _int()), ("t", _varchar()))
    tables = tuple(_table(1000 + n, f"small{n}", *columns) for n in range(count))
    kind = Kind(
        tables,
        lambda rng, n: {"id": n, "v": rng.randrange(10**6), "t": rng.choice(_WORDS)},
        ("v", "t"),
    )
    return Shape((kind,))


def _live() -> Shape:
    """Return what comes in a window of some hundredths of a second.

    That is eight changes of each of twenty tables.
    """
    tables = tuple(
        _table(
            300 + n,
            f"live{n}",
            ("id", {"tp": column_types.BIGINT}),
            ("owner", _int()),
            ("name", _varchar()),
            ("price", _decimal(12, 2)),
            ("changed", _datetime(3)),
            index="owner",
        )
        for n in range(20)
    )

    def make(rng: random.Random, number: int) -> Row:
        return {
            "id": number,
            "owner": rng.randrange(10**6),
            "name": _words(rng),
            "price": _money(rng, 2)[-9:].lstrip("-"),
            "changed": _moment(rng, 3),
        }

    return Shape(
        (Kind(tables, make, ("owner", "price", "changed")),), 4_000, 16_000, batch=160, window=40
    )


def _keyless(*, index: str = "") -> Shape:
    table = _table(
        240,
        "keyless",
        ("a", _int()),
        ("t", _varchar(**_CI)),
        ("d", {"tp": column_types.DOUBLE}),
        ("m", _decimal()),
        ("at", _datetime(3)),
        ("f", {"tp": column_types.FLOAT}),
        keys=0,
        index=index,
    )

    def make(rng: random.Random, number: int) -> Row:
        if rng.random() < 0.1:  # one of a few that are there many times
            again = random.Random(rng.randrange(100))
            return (
                make(again, 0)
                if again.random() < 0.9
                else {"a": 7, "t": "a", "d": 0.5, "m": None, "at": None, "f": 1}
            )
        return {
            "a": rng.choice((None, rng.randrange(10**5))),
            "t": rng.choice(_WORDS),
            "d": rng.random(),
            "m": _money(rng),
            "at": _moment(rng, 3),
            "f": rng.choice((None, rng.randrange(1000) / 8)),
        }

    return Shape((Kind((table,), make, ("a", "d")),))


def _strings() -> Shape:
    table = _table(
        250,
        "strings",
        ("region", _varchar(20, **_CI)),
        ("code", _varchar(40)),
        ("v", _int()),
        ("t", _varchar(**_CI)),
        keys=2,
    )

    def make(rng: random.Random, number: int) -> Row:
        code = f"{''.join(rng.choices(string.ascii_letters, k=12))}-{number}"
        return {
            "region": rng.choice(_WORDS),
            "code": code,
            "v": rng.randrange(10**6),
            "t": _words(rng),
        }

    return Shape((Kind((table,), make, ("v", "t")),))


def _decimals() -> Shape:
    columns = [(f"m{n}", _decimal(20 + 2 * n, 4)) for n in range(6)] + [
        (f"at{n}", _datetime(n)) for n in range(6)
    ]

    def make(rng: random.Random, number: int) -> Row:
        return (
            {"id": number}
            | {f"m{n}": _money(rng) for n in range(6)}
            | {f"at{n}": _moment(rng, n) for n in range(6)}
        )

    return Shape(
        (
            Kind(
                (_table(260, "decimals", ("id", _int()), *columns),),
                make,
                ("m0", "m1", "at0", "at1"),
            ),
        )
    )


def _tpcc() -> Shape:
    char: dict[str, Any] = {"tp": column_types.CHAR, "flen": 24, **_TEXT}
    warehouse = _table(
        270, "warehouse", ("w_id", _int()), ("w_name", _varchar(10)), ("w_ytd", _decimal(12, 2))
    )
    district = _table(
        271,
        "district",
        ("d_w_id", _int()),
        ("d_id", _int()),
        ("d_ytd", _decimal(12, 2)),
        ("d_next", _int()),
        keys=2,
    )
    customer = _table(
        272,
        "customer",
        ("c_w_id", _int()),
        ("c_d_id", _int()),
        ("c_id", _int()),
        ("c_last", _varchar(16)),
        ("c_balance", _decimal(12, 2)),
        ("c_since", _datetime(0)),
        ("c_data", _varchar(500)),
        keys=3,
        index="c_last",
    )
    orders = _table(
        273,
        "orders",
        ("o_w_id", _int()),
        ("o_d_id", _int()),
        ("o_id", _int()),
        ("o_c_id", _int()),
        ("o_entry", _datetime(0)),
        ("o_carrier", _int()),
        ("o_lines", _int()),
        keys=3,
        index="o_c_id",
    )
    line = _table(
        274,
        "order_line",
        ("ol_w_id", _int()),
        ("ol_d_id", _int()),
        ("ol_o_id", _int()),
        ("ol_number", _int()),
        ("ol_i_id", _int()),
        ("ol_amount", _decimal(6, 2)),
        ("ol_delivery", _datetime(0)),
        ("ol_dist", char),
        keys=4,
    )
    stock = _table(
        275,
        "stock",
        ("s_w_id", _int()),
        ("s_i_id", _int()),
        ("s_quantity", _int()),
        ("s_ytd", _decimal(8, 0)),
        ("s_dist", char),
        ("s_data", _varchar(50)),
        keys=2,
    )
    past = _table(
        276, "history", ("h_c_id", _int()), ("h_date", _datetime(0)), ("h_amount", _decimal(6, 2)),
        ("h_data", _varchar(24)), keys=0,
    )  # fmt: skip

    def small(rng: random.Random, scale: int = 2) -> str:
        return f"{rng.randrange(9999)}.{rng.randrange(10**scale):0{scale}}"

    def three(prefix: str, rng: random.Random, number: int) -> Row:
        return {f"{prefix}_w_id": number % 4, f"{prefix}_d_id": number % 10, f"{prefix}_id": number}

    kinds = (
        Kind(
            (warehouse,),
            lambda rng, n: {"w_id": n, "w_name": "w", "w_ytd": small(rng)},
            ("w_ytd",),
            1,
        ),
        Kind(
            (district,),
            lambda rng, n: {"d_w_id": n // 10, "d_id": n % 10, "d_ytd": small(rng), "d_next": n},
            ("d_ytd",),
            1,
        ),
        Kind(
            (customer,),
            lambda rng, n: (
                three("c", rng, n)
                | {
                    "c_last": _digits(rng, 1),
                    "c_balance": small(rng),
                    "c_since": _moment(rng, 0),
                    "c_data": _digits(rng, 20),
                }
            ),
            ("c_balance", "c_data"),
            4,
        ),
        Kind(
            (orders,),
            lambda rng, n: (
                three("o", rng, n)
                | {
                    "o_c_id": rng.randrange(3000),
                    "o_entry": _moment(rng, 0),
                    "o_carrier": None,
                    "o_lines": 10,
                }
            ),
            ("o_entry",),
            4,
        ),
        Kind(
            (line,),
            lambda rng, n: {
                "ol_w_id": n % 4,
                "ol_d_id": n % 10,
                "ol_o_id": n // 10,
                "ol_number": n,
                "ol_i_id": rng.randrange(10**5),
                "ol_amount": small(rng),
                "ol_delivery": None,
                "ol_dist": _digits(rng, 2),
            },
            ("ol_amount",),
            16,
        ),
        Kind(
            (stock,),
            lambda rng, n: {
                "s_w_id": n % 4,
                "s_i_id": n,
                "s_quantity": rng.randrange(100),
                "s_ytd": str(rng.randrange(99)),
                "s_dist": _digits(rng, 2),
                "s_data": _digits(rng, 4),
            },
            ("s_quantity", "s_ytd"),
            10,
        ),
        Kind(
            (past,),
            lambda rng, n: {
                "h_c_id": rng.randrange(3000),
                "h_date": _moment(rng, 0),
                "h_amount": small(rng),
                "h_data": "w d",
            },
            (),
            2,
            only_inserts=True,
        ),
    )
    return Shape(kinds)


SHAPES: Mapping[str, Callable[[], Shape]] = {
    "sysbench": _sysbench,
    "wide": _wide,
    "json": _json,
    "blobs": _blobs,
    "many": _many,
    "many-1000": lambda: _many(1_000),
    "many-10000": lambda: _many(10_000),
    "live": _live,
    "keyless": _keyless,
    "keyless-index": lambda: _keyless(index="a"),
    "strings": _strings,
    "decimals": _decimals,
    "tpcc": _tpcc,
}


def groups(
    transactions: list[list[tuple[Table, int, bytes]]], size: int
) -> Iterator[list[list[tuple[Table, int, bytes]]]]:
    """Group the transactions, `size` at a time."""
    for first in range(0, len(transactions), size):
        yield transactions[first : first + size]
