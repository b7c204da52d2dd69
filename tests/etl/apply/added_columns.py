"""Expressions of added columns that hypothesis draws, over some columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from sluice.etl.changes.conditions import ConditionError
from sluice.etl.changes.rules import ComputedColumn
from sluice.tidb.schema import Column, Table

TEXTS = ("''", "' '", "'Añb'", "'it''s'")
_MOST = 3
"""Levels of operands below each other."""


def expressions(of: Table, columns: Sequence[Column]) -> st.SearchStrategy[str]:
    """Expressions that read these columns, and that rules take for the table."""
    return st.one_of(_texts(columns, _MOST), _numbers(columns, _MOST), *_dates(columns)).filter(
        lambda text: _is_taken(text, of)
    )


def _is_taken(text: str, of: Table) -> bool:
    try:
        ComputedColumn(text).column("x", 0, of)
    except ConditionError:
        return False
    return True


def _calls(pattern: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda given: pattern.format(*given))


def _texts(columns: Sequence[Column], depth: int) -> st.SearchStrategy[str]:
    read = [f"`{c.name}`" for c in columns if c.kind in ("text", "enum")]
    leaves = st.sampled_from([*read, *TEXTS])
    if not depth:
        return leaves
    text, number = _texts(columns, depth - 1), _numbers(columns, depth - 1)
    size = st.integers(0, 5)
    others = [_calls("concat({}, {})", text, st.sampled_from([f"`{c.name}`"])) for c in columns]
    return st.one_of(
        leaves,
        _calls("concat({}, {})", text, st.one_of(text, number)),
        _calls("concat_ws({}, {}, {})", text, text, st.one_of(text, number)),
        _calls("lower({})", text),
        _calls("upper({})", text),
        _calls("left({}, {})", text, size),
        _calls("right({}, {})", text, size),
        _calls("substring({}, {})", text, size),
        _calls("substring({}, {}, {})", text, size, size),
        _calls("coalesce({}, {}, {})", text, text, text),
        _calls("ifnull({}, {})", text, text),
        _calls("cast({} as char)", number),
        *others,
    )


def _numbers(columns: Sequence[Column], depth: int) -> st.SearchStrategy[str]:
    # so that no result is beyond a BIGINT, where servers stop
    read = [
        f"cast(`{c.name}` as decimal(20,0))" if c.kind == "int" else f"`{c.name}`"
        for c in columns
        if c.kind in ("int", "decimal")
    ]
    leaves = st.sampled_from([*read, "0", "3", "-7", "0.25"])
    if not depth:
        return leaves
    number = _numbers(columns, depth - 1)
    moments = [f"`{c.name}`" for c in columns if c.kind in ("date", "datetime")]
    return st.one_of(
        leaves,
        _calls("({} + {})", number, number),
        _calls("{} - ({})", number, number),
        _calls("({}) * ({})", number, number),
        _calls("coalesce({}, {})", number, number),
        _calls("cast({} as decimal(50,1))", number),
        *(
            _calls("{}({})", st.sampled_from(["year", "month", "day"]), st.sampled_from(moments))
            for _ in moments[:1]
        ),
    )


def _dates(columns: Sequence[Column]) -> list[st.SearchStrategy[str]]:
    moments = [f"`{c.name}`" for c in columns if c.kind in ("date", "datetime")]
    return [
        _calls("ifnull(date({}), date({}))", *2 * (st.sampled_from(moments),)) for _ in moments[:1]
    ]
