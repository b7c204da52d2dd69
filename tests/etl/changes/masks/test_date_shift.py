"""Dates are shifted by keyed days, within the range of their type, in rows and copies alike."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.changes.masks import kernel, masked_changes, masked_columns
from sluice.etl.changes.rules import ColumnRuleError, Filter
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.etl.verify.masked_rows import masked_rows
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.changes.masks.test_encoded_rows import changes, decoded
from tests.etl.masking import KEY, SECTION, VARIABLE, days
from tests.etl.story import column, table, wider
from tests.examples import examples

COLUMNS = ("born date", "seen datetime(3)", "at timestamp", "note varchar(20)", "n bigint unsigned")
TABLES = {
    "clustered": table(11, "t", "id int", *COLUMNS, primary="id"),
    "common": table(11, "t", "id varchar(9)", *COLUMNS, primary="id"),
    "heap": table(11, "t", "id int", *COLUMNS),
}
SOME_DATES = st.one_of(
    st.dates().map(str),
    st.sampled_from(["0000-00-00", "1980-00-00", "2021-02-30", "9999-12-31", "0001-01-01"]),
    st.sampled_from(["2000-02-29", "1900-03-01", "1999-12-31", "9999-12-30"]),
)
DATES = st.one_of(st.none(), SOME_DATES)
TIMES = st.one_of(st.times().map(lambda t: f"{t:%H:%M:%S}"), st.sampled_from(["00:00:00"]))
STAMPS = st.one_of(
    st.none(),
    st.just("0000-00-00 00:00:00"),
    st.datetimes(
        datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(2038, 1, 19, 3, 14, 7)
    ).map(lambda t: f"{t:%Y-%m-%d %H:%M:%S}"),
    st.sampled_from(["1970-01-01 00:00:01", "1970-01-02 00:00:00", "2038-01-19 03:14:07"]),
    st.sampled_from(["2038-01-18 03:14:08", "2038-01-18 03:14:07"]),
)
ROWS = st.fixed_dictionaries(
    {
        "born": DATES,
        "seen": st.one_of(st.none(), st.tuples(SOME_DATES, TIMES).map(" ".join)),
        "at": STAMPS,
        "note": st.sampled_from([None, "", "p", "é" * 20]),
        "n": st.sampled_from([None, 0, 7, 2**64 - 1]),
    }
)


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


def filters(**masks: Any) -> Filter:
    return parse_filter({"columns": [{"tables": ["d.t"], "mask": masks}], "mask": SECTION})[0]


def shift(most: int, by: str = "") -> dict[str, Any]:
    return {"shift-days": most} | ({"by": by} if by else {})


def moved(date: str, by: int) -> str:
    return str(datetime.date.fromisoformat(date) + datetime.timedelta(by))


def masked(of: Table, rule: Filter, **columns: list[Any]) -> dict[str, list[Any]]:
    shaped = rule.narrowed(of)
    types = {c.name: pa.int64() if c.kind == "int" else pa.large_string() for c in of.columns}
    batch = pa.record_batch({n: pa.array(values, types[n]) for n, values in columns.items()})
    found = masked_columns(batch, [c for c in shaped.columns if c.name in columns])
    return found.to_pydict()


def test_a_column_is_shifted_by_one_number_of_days_and_keeps_its_intervals() -> None:
    by = days(90, None)
    assert 0 < abs(by) <= 90
    clear = ["1999-12-31", "2000-02-29", None]
    found = masked(TABLES["clustered"], filters(born=shift(90)), born=clear)
    assert found == {"born": [value and moved(value, by) for value in clear]}


def test_rows_of_one_person_are_shifted_by_the_same_days_and_others_by_others() -> None:
    rule = filters(born=shift(3650, "N"), note="hash")
    clear = {"born": ["2000-01-01", "2001-01-01", "2000-01-01", "2000-01-01"], "n": [7, 7, 8, None]}
    found = masked(TABLES["clustered"], rule, **clear)["born"]
    persons = ["7", "7", "8", None]
    assert found == [
        moved(value, days(3650, who)) for value, who in zip(clear["born"], persons, strict=True)
    ]
    assert len(set(map(days, [3650] * 3, ["7", "8", None]))) == 3


def test_a_person_may_be_masked_itself() -> None:
    rule = filters(born=shift(365, "note"), note="hash")
    wide = table(11, "t", "id int", "born date", "note varchar(64)", primary="id")
    found = masked(wide, rule, note=["ann"], born=["2000-01-01"])
    assert found["born"] == [moved("2000-01-01", days(365, "ann"))]
    assert found["note"] != ["ann"]


@pytest.mark.parametrize("person", range(40))
def test_no_value_leaves_the_range_of_its_type(person: int) -> None:
    rule = filters(**{name: shift(30, "n") for name in ("born", "seen", "at")})
    by = days(30, str(person))
    edges = {
        "born": ["0001-01-01", "9999-12-31", "0000-00-00"],
        "seen": ["0001-01-05 23:59:59.999", "9999-12-27 23:59:59.999", "1980-00-00 10:00:00.000"],
        "at": ["1970-01-01 00:00:01", "2038-01-18 23:00:00", "0000-00-00 00:00:00"],
    }
    found = masked(TABLES["clustered"], rule, **edges, n=[person] * 3)
    if by > 0:
        assert found["born"][:2] == [moved("0001-01-01", by), "9999-12-31"]
        assert found["seen"][1] == moved("9999-12-27", min(by, 4)) + " 23:59:59.999"
        assert found["at"][:2] == [moved("1970-01-01", by) + " 00:00:01", "2038-01-18 23:00:00"]
    else:
        assert found["born"][:2] == ["0001-01-01", moved("9999-12-31", by)]
        assert found["seen"][0] == moved("0001-01-05", max(by, -4)) + " 23:59:59.999"
        assert found["at"][:2] == ["1970-01-01 00:00:01", moved("2038-01-18", by) + " 23:00:00"]
    assert [found[name][2] for name in edges] == [
        "0000-00-00", "0000-00-00 00:00:00.000", "0000-00-00 00:00:00",
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("form", TABLES)
@tried(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_rows_of_any_form_decode_to_shifted_dates(
    form: str, compiled: bool, data: st.DataObject
) -> None:
    of, rows = TABLES[form], []
    by = data.draw(st.sampled_from(["", "n", "note", "id"]))
    rule = filters(**{n: shift(500, by) for n in ("born", "seen", "at")}, note={"partial": 1})
    for number in range(data.draw(st.integers(1, 20))):
        ids = {"id": f"k{number}" if form == "common" else number, "_tidb_rowid": number}
        old, new = (data.draw(ROWS) | ids for _ in range(2))
        kind = data.draw(st.sampled_from([INSERT, UPDATE, DELETE]))
        row = (
            encode_insert(of, new)
            if kind == INSERT
            else encode_update(of, old, new)
            if kind == UPDATE
            else encode_delete(of, old)
        )
        rows.append((kind, row))
    shaped = rule.narrowed(of)
    before = changes([kind for kind, _ in rows], [row for _, row in rows])
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(kernel, "IS_COMPILED", False)
        after = masked_changes(shaped, before)
    for kind in (INSERT, UPDATE, DELETE):
        own = pa.array([each == kind for each, _ in rows])
        clear, found = (each.filter(own)["row"].combine_chunks() for each in (before, after))
        pairs = zip(decoded(of, kind, clear), decoded(shaped, kind, found), strict=True)
        for was, is_now in pairs:
            (wanted,) = masked_rows([was], shaped.columns)
            assert is_now.to_pylist() == wanted.to_pylist()
            assert masked_columns(was, shaped.columns).to_pylist() == wanted.to_pylist()


def test_what_cannot_be_shifted_is_refused_by_name() -> None:
    of = TABLES["clustered"]
    for rule, why in (
        (filters(note=shift(9)), "it holds no dates but text"),
        (filters(born=shift(9, "who")), "the table has no column who"),
        (filters(born=shift(9, "at")), "column at holds neither whole numbers nor text"),
    ):
        with pytest.raises(ColumnRuleError, match=why):
            rule.narrowed(of)
    default = column(9, "since date", default="2020-01-01", origin_default="2020-01-01")
    with pytest.raises(ColumnRuleError, match="a default that is a date, which belongs to no row"):
        filters(since=shift(9)).narrowed(wider(of, default))
    rules = {"columns": [{"tables": ["d.t"], "leave-out": ["n"], "mask": {"born": shift(9, "n")}}]}
    with pytest.raises(ColumnRuleError, match="column n isn't downstream"):
        parse_filter(rules | {"mask": SECTION})[0].narrowed(of)
    for wrong in (
        {"shift-days": 0},
        {"shift-days": 36_501},
        {"shift-days": 9, "by": ""},
        "shift-days",
    ):
        with pytest.raises(RuleError, match="shift-days = 365"):
            filters(born=wrong)
    with pytest.raises(RuleError, match="needs a key"):
        parse_filter(
            {
                "columns": [{"tables": ["d.t"], "mask": {"born": shift(9)}}],
                "mask": {"relay-log": "clear"},
            }
        )
