"""Whatever a table's columns hold, a consumer of any format reads it, and no other value."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.messages import Bootstraps, encoder_for, split_frames
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.orders import batch_of
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import Change, as_sent, decoded

_ELEMENTS = ("new", "it's", 'a "b"', "(c)", "é")
_LARGEST = 2**64 - 1


def _plain(value: Any) -> Any:
    return value


def _element(value: int) -> str:
    return _ELEMENTS[value - 1] if value else ""


def _elements(value: int) -> str:
    return ",".join(name for bit, name in enumerate(_ELEMENTS) if value >> bit & 1)


_TEXT = st.one_of(st.text(max_size=8), st.binary(max_size=5))
_MOMENTS = st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2038, 1, 1))
_MICROS = _MOMENTS.map(lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S.%f"))
_TIMES = st.sampled_from(("-838:59:59", "00:00:00", "-00:00:01", "101:02:03"))
_EXACT_TIMES = st.sampled_from(("-00:00:00.028800", "838:59:59.000000"))
_FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: x + 0.0)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
_KINDS: list[tuple[dict[str, Any], st.SearchStrategy[Any], Callable[[Any], Any]]] = [
    ({"tp": types.TINYINT, "flen": 4}, st.integers(-128, 127), _plain),
    ({"tp": types.BIGINT, "flen": 20}, st.integers(-(2**63), 2**63 - 1), _plain),
    (
        {"tp": types.BIGINT, "flen": 20, "flag": types.FLAG_UNSIGNED},
        st.integers(0, _LARGEST),
        _plain,
    ),
    ({"tp": types.MEDIUMINT, "flag": types.FLAG_UNSIGNED}, st.integers(0, 2**24 - 1), _plain),
    ({"tp": types.FLOAT}, _FLOATS, _plain),
    ({"tp": types.DOUBLE}, _DOUBLES, _plain),
    (
        {"tp": types.DECIMAL, "flen": 20, "decimal": 4},
        st.decimals(-(10**15), 10**15, places=4).map(lambda d: f"{d:.4f}"),
        _plain,
    ),
    ({"tp": types.BIT, "flen": 1}, st.integers(0, 1), _plain),
    ({"tp": types.BIT, "flen": 17}, st.integers(0, 2**17 - 1), _plain),
    ({"tp": types.BIT, "flen": 64}, st.integers(0, _LARGEST), _plain),
    ({"tp": types.VARCHAR, "flen": 20, "charset": "utf8mb4"}, _TEXT, _plain),
    ({"tp": types.LONGTEXT, "charset": "utf8mb4"}, _TEXT, _plain),
    ({"tp": types.VARCHAR, "flen": 20, "charset": "binary"}, st.binary(max_size=8), _plain),
    ({"tp": types.TEXT, "charset": "binary"}, st.binary(max_size=8), _plain),
    ({"tp": types.ENUM, "elems": _ELEMENTS}, st.integers(0, len(_ELEMENTS)), _element),
    ({"tp": types.SET, "elems": _ELEMENTS}, st.integers(0, 2 ** len(_ELEMENTS) - 1), _elements),
    ({"tp": types.JSON}, st.text(max_size=4).map(lambda s: f'{{"{len(s)}": [1, null]}}'), _plain),
    ({"tp": types.YEAR, "flen": 4}, st.sampled_from((0, 1901, 2024, 2155)), _plain),
    ({"tp": types.DATE}, st.dates(datetime.date(1000, 1, 1)).map(str), _plain),
    ({"tp": types.DATETIME}, _MOMENTS.map(lambda d: f"{d:%Y-%m-%d %H:%M:%S}"), _plain),
    ({"tp": types.DATETIME, "decimal": 6}, _MICROS, _plain),
    ({"tp": types.TIMESTAMP, "decimal": 3}, _MICROS.map(lambda text: text[:-3]), _plain),
    ({"tp": types.TIME}, _TIMES, _plain),
    ({"tp": types.TIME, "decimal": 6}, _EXACT_TIMES, _plain),
]  # fmt: skip


@st.composite
def changes(draw: st.DrawFn) -> tuple[Table, int, list[dict[str, Any]], list[dict[str, Any]]]:
    """A table, a kind of change, its images as encoders take them, and as readers give them."""
    chosen = draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=5))
    names = draw(
        st.lists(
            st.sampled_from(("a", "b", "c c", 'd"', "é`", "from")),
            min_size=len(chosen),
            max_size=len(chosen),
            unique=True,
        )
    )
    columns = tuple(
        Column(number + 1, name, number, **shape)
        for number, (name, (shape, _, _)) in enumerate(zip(names, chosen, strict=True))
    )
    rows, read = [], []
    for _ in range(2):
        values = [draw(st.none() | values) for _, values, _ in chosen]
        rows.append(dict(zip(names, values, strict=True)))
        read.append(
            {
                name: None if value is None else as_read(value)
                for name, value, (_, _, as_read) in zip(names, values, chosen, strict=True)
            }
        )
    kind = draw(st.sampled_from((INSERT, UPDATE, DELETE)))
    return Table(1, 1, "s h", 't"', columns), kind, rows, read


@pytest.mark.parametrize("name", READERS)
@given(changes())
def test_a_reader_finds_the_values_of_any_row(name: str, change: Any) -> None:
    table, kind, (old, new), (old_read, new_read) = change
    options, new_reader = READERS[name]
    batch = batch_of(
        kind, old=None if kind == INSERT else old, new=None if kind == DELETE else new, table=table
    )
    reader = new_reader()
    encoder = encoder_for(options)
    (frame,) = encoder.rows(batch).to_pylist()
    messages = as_sent(encoder, split_frames(frame), encoder.schemas, Bootstraps())
    (found,) = [read for message in messages if (read := reader.read(message))]
    assert found == Change(
        ("insert", "update", "delete")[kind],
        's h.t"',
        None if kind == INSERT else decoded(table.columns, old_read, reader),
        None if kind == DELETE else decoded(table.columns, new_read, reader),
    )
