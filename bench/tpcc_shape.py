"""Traffic with the tables and transactions of TPC-C."""

from __future__ import annotations

import random
from typing import Any

from sluice.bench.shape_parts import (
    TEXT,
    Kind,
    Row,
    Shape,
    datetime_column,
    decimal_column,
    digits,
    int_column,
    make_table,
    moment,
    varchar_column,
)
from sluice.tidb import column_types


def tpcc_shape() -> Shape:
    """Return the shape: its tables, and the kinds of transactions over them."""
    char: dict[str, Any] = {"tp": column_types.CHAR, "flen": 24, **TEXT}
    warehouse = make_table(
        270,
        "warehouse",
        ("w_id", int_column()),
        ("w_name", varchar_column(10)),
        ("w_ytd", decimal_column(12, 2)),
    )
    district = make_table(
        271,
        "district",
        ("d_w_id", int_column()),
        ("d_id", int_column()),
        ("d_ytd", decimal_column(12, 2)),
        ("d_next", int_column()),
        keys=2,
    )
    customer = make_table(
        272,
        "customer",
        ("c_w_id", int_column()),
        ("c_d_id", int_column()),
        ("c_id", int_column()),
        ("c_last", varchar_column(16)),
        ("c_balance", decimal_column(12, 2)),
        ("c_since", datetime_column(0)),
        ("c_data", varchar_column(500)),
        keys=3,
        index="c_last",
    )
    orders = make_table(
        273,
        "orders",
        ("o_w_id", int_column()),
        ("o_d_id", int_column()),
        ("o_id", int_column()),
        ("o_c_id", int_column()),
        ("o_entry", datetime_column(0)),
        ("o_carrier", int_column()),
        ("o_lines", int_column()),
        keys=3,
        index="o_c_id",
    )
    line = make_table(
        274,
        "order_line",
        ("ol_w_id", int_column()),
        ("ol_d_id", int_column()),
        ("ol_o_id", int_column()),
        ("ol_number", int_column()),
        ("ol_i_id", int_column()),
        ("ol_amount", decimal_column(6, 2)),
        ("ol_delivery", datetime_column(0)),
        ("ol_dist", char),
        keys=4,
    )
    stock = make_table(
        275,
        "stock",
        ("s_w_id", int_column()),
        ("s_i_id", int_column()),
        ("s_quantity", int_column()),
        ("s_ytd", decimal_column(8, 0)),
        ("s_dist", char),
        ("s_data", varchar_column(50)),
        keys=2,
    )
    past = make_table(
        276, "history", ("h_c_id", int_column()), ("h_date", datetime_column(0)),
        ("h_amount", decimal_column(6, 2)),
        ("h_data", varchar_column(24)), keys=0,
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
                    "c_last": digits(rng, 1),
                    "c_balance": small(rng),
                    "c_since": moment(rng, 0),
                    "c_data": digits(rng, 20),
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
                    "o_entry": moment(rng, 0),
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
                "ol_dist": digits(rng, 2),
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
                "s_dist": digits(rng, 2),
                "s_data": digits(rng, 4),
            },
            ("s_quantity", "s_ytd"),
            10,
        ),
        Kind(
            (past,),
            lambda rng, n: {
                "h_c_id": rng.randrange(3000),
                "h_date": moment(rng, 0),
                "h_amount": small(rng),
                "h_data": "w d",
            },
            (),
            2,
            only_inserts=True,
        ),
    )
    return Shape(kinds)
