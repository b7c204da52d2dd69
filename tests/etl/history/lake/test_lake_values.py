"""Tables that nobody thought of, with values at the ends of their types: what goes into the lake
comes out of it.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb.rows import encode_insert
from sluice.tidb.schema import Column
from tests.etl.history.lake.told_lake import ToldLake
from tests.etl.story import column, table
from tests.examples import examples

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
Kind = tuple[str, st.SearchStrategy[Any], Callable[[Any], Any]]
"""A column's SQL type, its values as `sluice.tidb.rows` writes them, and what the lake has of one:
a value, or (text,) for one that stands in `_exact`.
"""


def _digits(whole: int, fraction: int) -> st.SearchStrategy[str]:
    limit = 10 ** (whole + fraction)

    def text(number: int) -> str:
        digits = f"{abs(number):0{fraction + 1}}"
        return f"{'-' if number < 0 else ''}{digits[:-fraction]}.{digits[-fraction:]}"

    return st.integers(1 - limit, limit - 1).map(text)


def _date(text: str) -> Any:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return (text,)


def _moment(zone: Any) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return datetime.fromisoformat(text).replace(tzinfo=zone)
        except ValueError:
            return (text,)

    return parse


def _number(value: int) -> Any:
    """TiDB stores what is beyond an INT UNSIGNED in a mode that isn't strict."""
    return value if value < 2**63 else (str(value),)


def _text(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw.hex(),)


_DATES = st.one_of(
    st.dates().map(str),
    st.builds(
        "{:04}-{:02}-{:02}".format, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)
    ),
    st.sampled_from(
        [
            "0000-00-00",
            "2023-02-29",
            "2000-02-29",
            "1900-02-29",
            "0001-01-01",
            "9999-12-31",
            "0000-01-01",
        ]
    ),
)
_CLOCKS = st.builds(
    "{:02}:{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59)
)
_MICROS = st.integers(0, 999_999).map("{:06}".format)
_TIMES = st.builds(
    "{}{:02}:{:02}:{:02}.{}".format,
    st.sampled_from(["-", ""]),
    st.integers(1, 838),
    st.integers(0, 59),
    st.integers(0, 59),
    _MICROS,
)
_BYTES = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"", b"\xff\xfe", b"\0"]),
)
KINDS: tuple[Kind, ...] = (
    ("bigint", st.integers(-(2**63), 2**63 - 1), int),
    ("bigint unsigned", st.integers(0, 2**64 - 1), Decimal),
    (
        "int unsigned",
        st.integers(0, 2**32 - 1) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]),
        _number,
    ),
    ("tinyint", st.integers(-128, 127), int),
    ("decimal(65,30)", _digits(35, 30), str),
    ("decimal(38,10)", _digits(28, 10), Decimal),
    ("decimal(5,5)", _digits(0, 5), Decimal),
    ("float", st.floats(width=32, allow_nan=False, allow_infinity=False), float),
    ("double", st.floats(allow_nan=False, allow_infinity=False), float),
    ("bit(64)", st.integers(0, 2**64 - 1), Decimal),
    ("bit(9)", st.integers(0, 511), int),
    ("year", st.one_of(st.just(0), st.integers(1901, 2155)), int),
    ("date", _DATES, _date),
    ("datetime(6)", st.builds("{} {}.{}".format, _DATES, _CLOCKS, _MICROS), _moment(None)),
    ("datetime", st.builds("{} {}".format, _DATES, _CLOCKS), _moment(None)),
    ("timestamp(6)", st.builds("{} {}.{}".format, _DATES, _CLOCKS, _MICROS), _moment(UTC)),
    ("time(6)", _TIMES, str),
    ("varchar(40)", _BYTES, _text),
    ("varbinary(40)", st.binary(max_size=20), bytes),
    ("enum('a','b c','')", st.sampled_from(["a", "b c"]), str),
    (
        "set('x','y','z')",
        st.sets(st.sampled_from("xyz")).map(lambda names: ",".join(sorted(names))),
        str,
    ),
    (
        "json",
        st.dictionaries(st.text("ab", max_size=3), st.integers(-9, 9)).map(json.dumps),
        json.loads,
    ),
)
NAMES = st.one_of(
    st.text(
        st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12
    ).filter(str.strip),
    st.sampled_from(
        [
            "day",
            "_day",
            "DAY",
            "_op",
            "__op",
            "schema_version",
            "a.b",
            "we`ird",
            'q"',
            "_exact",
            "x=y",
            "%",
        ]
    ),
)


@st.composite
def told(draw: Any) -> tuple[list[tuple[str, Kind]], list[dict[str, Any]]]:
    """Columns by name, and rows."""
    names = draw(
        st.lists(NAMES, min_size=1, max_size=6, unique_by=lambda name: name.strip().casefold())
    )
    columns = [(name, draw(st.sampled_from(KINDS))) for name in names]
    rows = draw(
        st.lists(
            st.fixed_dictionaries({name: st.none() | values for name, (_, values, _) in columns}),
            min_size=1,
            max_size=24,
        )
    )
    return columns, rows


def _lake_name(name: str) -> str:
    bare = name.lstrip("_").lower()
    own = {"op", "commit_ts", "commit_time", "start_ts", "pos", "exact", "tidb_rowid"}
    taken = bare in ("day", "schema_version") or (bare in own and name.startswith("_"))
    return f"_{name}" if taken else name


def _as_expected(
    row: dict[str, Any], columns: list[tuple[str, Kind]], values: dict[str, Any]
) -> None:
    exact = dict(row["_exact"] or [])
    for name, (sql, _, expect) in columns:
        expected = None if values[name] is None else expect(values[name])
        found = row[_lake_name(name)]
        if isinstance(expected, tuple):
            assert (found, exact.pop(_lake_name(name))) == (None, expected[0]), name
        elif sql == "json" and expected is not None:
            assert json.loads(found) == expected
        else:
            assert found == expected and type(found) is type(expected), (name, found, expected)
    assert exact == {}


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(told())
def test_what_a_table_holds_is_in_the_lake_exactly(
    case: tuple[list[tuple[str, Kind]], list[dict[str, Any]]],
) -> None:
    columns, rows = case
    made = table(
        41,
        "t",
        *(_column(number, sql, name) for number, (name, (sql, _, _)) in enumerate(columns, 2)),
    )
    rows = [{"_tidb_rowid": number, **values} for number, values in enumerate(rows, 1)]
    changes = (
        [(None, values) for values in rows] + list(itertools.pairwise(rows)) + [(rows[-1], None)]
    )
    with tempfile.TemporaryDirectory() as folder:
        lake = ToldLake(Path(folder))
        (file,) = lake.changes(NOON, made, changes)
        read = pq.ParquetFile(lake.folder / file.path).read().to_pylist()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            asked = connection.execute(
                f"SELECT * FROM read_parquet('{lake.folder}/lake/*/*/*/*.parquet',"
                " hive_partitioning = false)"
            )
            names = [column[0] for column in asked.description]
            by_duckdb = [dict(zip(names, values, strict=False)) for values in asked.fetchall()]
    images = [(op, image) for old, new in changes for op, image in _images(old, new)]
    assert [row["_op"] for row in read] == [op for op, _ in images]
    for row, other, (_, values) in zip(read, by_duckdb, images, strict=True):
        _as_expected(row, columns, values)
        assert row["_tidb_rowid"] == values["_tidb_rowid"]
        assert {c: v for c, v in other.items() if c != "_exact"} == {
            c: v for c, v in row.items() if c != "_exact"
        }
        assert (other["_exact"] or {}) == dict(row["_exact"] or [])


def _column(number: int, sql: str, name: str) -> Column:
    return replace(column(number, f"c {sql}"), name=name, offset=number - 2)


def _images(
    old: dict[str, Any] | None, new: dict[str, Any] | None
) -> list[tuple[str, dict[str, Any]]]:
    if old is not None and new is not None:
        return [("update_preimage", old), ("update_postimage", new)]
    return [("insert", new or {})] if old is None else [("delete", old)]


def test_rows_of_two_days_lie_in_two_folders_and_midnight_is_utcs(tmp_path: Path) -> None:
    lake = ToldLake(tmp_path)
    made = table(41, "t", "id int not null", primary="id")
    midnight = datetime(2026, 11, 23, tzinfo=UTC) - timedelta(milliseconds=3)
    files = lake.changes(midnight, made, [(None, {"id": number}) for number in range(5)])
    assert [(file.day, file.rows) for file in files] == [("2026-11-22", 2), ("2026-11-23", 3)]


def test_a_change_that_no_column_fits_is_kept_with_the_reason_and_the_others_are_there(
    tmp_path: Path,
) -> None:
    lake = ToldLake(tmp_path)
    made = table(41, "t", "id int not null", "v varchar(9)", primary="id")
    good = [{"id": number, "v": "x"} for number in range(40)]
    torn = encode_insert(made, {"id": 99, "v": "torn apart"})[:-3]
    files = lake.changes(NOON, made, [(None, row) for row in good], raw=[torn])
    by_table = {file.table: file for file in files}
    assert by_table["t"].rows == 40
    (kept,) = pq.ParquetFile(lake.folder / by_table["_unreadable"].path).read().to_pylist()
    assert (kept["table_id"], kept["kind"], kept["row"]) == (41, 0, torn)
    assert kept["reason"] and kept["_commit_time"] == NOON + timedelta(milliseconds=41)


def test_a_version_goes_on_while_columns_stay_and_begins_anew_where_they_or_the_table_change(
    tmp_path: Path,
) -> None:
    lake = ToldLake(tmp_path)
    row = (None, {"id": 1, "v": "x"})
    one = table(41, "t", "id int not null", "v varchar(9)", primary="id")
    longer = table(41, "t", "id int not null", "v varchar(90)", primary="id", unique=("v",))
    other = table(41, "t", "id int not null", "v varbinary(9)", primary="id")
    truncated = table(55, "t", "id int not null", "v varchar(9)", primary="id")
    steps = [(one, 7), (longer, 8), (other, 9), (one, 12), (truncated, 13), (one, 14)]
    found = [
        lake.changes(NOON + timedelta(hours=n), *_told(made, row, v))
        for n, (made, v) in enumerate(steps)
    ]
    assert [file.schema_version for (file,) in found] == [7, 7, 9, 7, 13, 7]
    noted = sorted(path.name for path in (lake.folder / "lake-versions" / "d.t").iterdir())
    assert [int(name.removesuffix(".json")) for name in noted] == [7, 9, 13]


def _told(made: Any, row: Any, version: int) -> tuple[Any, list[Any], int]:
    return made, [row], version
