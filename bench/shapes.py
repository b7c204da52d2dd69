"""Traffic of other shapes than sysbench's.

It is made-up tables, and random transactions over them as TiDB would write them. A shape has the
tables' definitions and a function for a row of each. `history` makes transactions of inserts,
updates and deletes that follow one another, with the rows that are there in the end.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping
from typing import Any

from sluice.bench.shape_parts import (
    BYTES,
    CI,
    TEXT,
    WORDS,
    Kind,
    Row,
    Shape,
    datetime_column,
    decimal_column,
    digits,
    int_column,
    make_table,
    moment,
    money,
    varchar_column,
    words,
)
from sluice.bench.tpcc_shape import tpcc_shape
from sluice.tidb import column_types


def _sysbench() -> Shape:
    tables = tuple(
        make_table(
            100 + n,
            f"sbtest{n}",
            ("id", int_column()),
            ("k", int_column()),
            ("c", {"tp": column_types.CHAR, "flen": 120, **TEXT}),
            ("pad", {"tp": column_types.CHAR, "flen": 60, **TEXT}),
            index="k",
        )
        for n in range(4)
    )

    def make(rng: random.Random, number: int) -> Row:
        return {
            "id": number,
            "k": rng.randrange(20_000),
            "c": digits(rng, 10),
            "pad": digits(rng, 5),
        }

    return Shape((Kind(tables, make, ("k", "c")),))


def _wide() -> Shape:
    kinds: tuple[tuple[dict[str, Any], Callable[[random.Random], Any]], ...] = (
        (int_column(), lambda rng: rng.randrange(10**6)),
        (varchar_column(30), lambda rng: rng.choice(WORDS)),
        (decimal_column(), money),
        (datetime_column(0), lambda rng: moment(rng, 0)),
        (
            {"tp": column_types.BIGINT},
            lambda rng: None if rng.random() < 0.5 else rng.getrandbits(60),
        ),
    )
    columns = [(f"c{n}", kinds[n % 5][0]) for n in range(199)]

    def make(rng: random.Random, number: int) -> Row:
        return {"id": number} | {f"c{n}": kinds[n % 5][1](rng) for n in range(199)}

    table = make_table(200, "wide", ("id", int_column()), *columns)
    return Shape((Kind((table,), make, ("c0", "c1", "c2", "c3")),), 2_000, 16_000, 4_000)


def _json() -> Shape:
    def document(rng: random.Random) -> str:
        tags = ", ".join(f'"{word}"' for word in rng.choices(("red", "green", "blue", "été"), k=4))
        return (
            f'{{"id": {rng.randrange(10**9)}, "name": "{rng.choice(("ann", "bob", "zoë"))}",'
            f' "tags": [{tags}], "price": {rng.randrange(10**4)}.25, "address": {{"street":'
            f' "{digits(rng, 2)}", "zip": null, "lines": [{rng.randrange(99)},'
            f" {rng.randrange(99)}, true]}}}}"
        )

    table = make_table(
        210,
        "json",
        ("id", int_column()),
        ("a", {"tp": column_types.JSON}),
        ("b", {"tp": column_types.JSON}),
    )
    kind = Kind((table,), lambda rng, n: {"id": n, "a": document(rng), "b": document(rng)}, ("a",))
    return Shape((kind,), 10_000, 30_000, 5_000)


def _blobs() -> Shape:
    table = make_table(
        220,
        "blobs",
        ("id", int_column()),
        ("data", {"tp": column_types.TEXT, **BYTES}),
        ("note", {"tp": column_types.TEXT, **TEXT}),
        ("digest", {"tp": column_types.CHAR, "flen": 16, **BYTES}),
    )

    def make(rng: random.Random, number: int) -> Row:
        size = rng.choice((100, 500, 3000))
        return {
            "id": number,
            "data": rng.randbytes(size),
            "note": words(rng, 20),
            "digest": rng.randbytes(16),
        }

    return Shape((Kind((table,), make, ("data", "digest")),), 6_000, 18_000, 3_000)


def _many(count: int = 300) -> Shape:
    """Return many small tables; their number is all that differs between two of these."""
    columns = (("id", int_column()), ("v", int_column()), ("t", varchar_column()))
    tables = tuple(make_table(1000 + n, f"small{n}", *columns) for n in range(count))
    kind = Kind(
        tables,
        lambda rng, n: {"id": n, "v": rng.randrange(10**6), "t": rng.choice(WORDS)},
        ("v", "t"),
    )
    return Shape((kind,))


def _live() -> Shape:
    """Return what comes in a window of some hundredths of a second.

    That is eight changes of each of twenty tables.
    """
    tables = tuple(
        make_table(
            300 + n,
            f"live{n}",
            ("id", {"tp": column_types.BIGINT}),
            ("owner", int_column()),
            ("name", varchar_column()),
            ("price", decimal_column(12, 2)),
            ("changed", datetime_column(3)),
            index="owner",
        )
        for n in range(20)
    )

    def make(rng: random.Random, number: int) -> Row:
        return {
            "id": number,
            "owner": rng.randrange(10**6),
            "name": words(rng),
            "price": money(rng, 2)[-9:].lstrip("-"),
            "changed": moment(rng, 3),
        }

    return Shape(
        (Kind(tables, make, ("owner", "price", "changed")),), 4_000, 16_000, batch=160, window=40
    )


def _keyless(*, index: str = "") -> Shape:
    table = make_table(
        240,
        "keyless",
        ("a", int_column()),
        ("t", varchar_column(**CI)),
        ("d", {"tp": column_types.DOUBLE}),
        ("m", decimal_column()),
        ("at", datetime_column(3)),
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
            "t": rng.choice(WORDS),
            "d": rng.random(),
            "m": money(rng),
            "at": moment(rng, 3),
            "f": rng.choice((None, rng.randrange(1000) / 8)),
        }

    return Shape((Kind((table,), make, ("a", "d")),))


def _strings() -> Shape:
    table = make_table(
        250,
        "strings",
        ("region", varchar_column(20, **CI)),
        ("code", varchar_column(40)),
        ("v", int_column()),
        ("t", varchar_column(**CI)),
        keys=2,
    )

    def make(rng: random.Random, number: int) -> Row:
        code = f"{''.join(rng.choices(string.ascii_letters, k=12))}-{number}"
        return {
            "region": rng.choice(WORDS),
            "code": code,
            "v": rng.randrange(10**6),
            "t": words(rng),
        }

    return Shape((Kind((table,), make, ("v", "t")),))


def _decimals() -> Shape:
    columns = [(f"m{n}", decimal_column(20 + 2 * n, 4)) for n in range(6)] + [
        (f"at{n}", datetime_column(n)) for n in range(6)
    ]

    def make(rng: random.Random, number: int) -> Row:
        return (
            {"id": number}
            | {f"m{n}": money(rng) for n in range(6)}
            | {f"at{n}": moment(rng, n) for n in range(6)}
        )

    return Shape(
        (
            Kind(
                (make_table(260, "decimals", ("id", int_column()), *columns),),
                make,
                ("m0", "m1", "at0", "at1"),
            ),
        )
    )


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
    "tpcc": tpcc_shape,
}
