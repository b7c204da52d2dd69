"""What can be asked of a backfill: conditions, keys, how much at once."""

from __future__ import annotations

import pytest

from sluice.etl.changes.formats.key_ranges import KeyColumn
from sluice.etl.copy.backfill import BackfillError, BackfillRequest
from sluice.etl.copy.backfill.condition import check_condition
from sluice.etl.copy.backfill.table_key import parse_key, range_key
from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize, RowRateLimiter
from sluice.tidb.column_types import FLAG_NOT_NULL, FLAG_PRIMARY_KEY
from sluice.tidb.schema import Column, Index, Table


@pytest.mark.parametrize(
    "text",
    [
        "id = 7",
        "a IN (1, 2) AND (b LIKE 'x%' OR `now` IS NULL)",
        "s = 'now(); select'",
        "YEAR(made) = 2026",
        "`a``b` > 1",
    ],
)
def test_a_condition_about_a_row_alone_is_taken(text: str) -> None:
    check_condition(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("made > NOW()", "NOW"),
        ("made > now ( )", "now"),
        ("d = current_date", "current_date"),
        ("RAND() < 0.1", "RAND"),
        ("id IN (SELECT 1)", "SELECT"),
        ("EXISTS (TABLE t)", "EXISTS"),
        ("id = @x", "@"),
        ("id = @@port", "@"),
        ("1) OR (1", "closed"),
        ("(id = 1", "not closed"),
        ("id = 1; DROP TABLE t", ";"),
        ("id = 1 -- x", "comments"),
        ("id = 1 /* x */", "comments"),
        ("id = 1 # x", "comments"),
        ("s = 'it\\'s'", "backslash"),
        ("s = 'x", "closed"),
        (" ", "empty"),
        ("t > UNIX_TIMESTAMP()", "UNIX_TIMESTAMP"),
        ("SLEEP(1)", "SLEEP"),
    ],
)
def test_a_condition_that_means_something_else_each_time_or_ends_the_statement_is_refused_by_name(
    text: str, named: str
) -> None:
    with pytest.raises(BackfillError, match="--where") as caught:
        check_condition(text)
    assert named.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tables": ()}, "--table"), ({"tables": ("t",)}, "t.*"), ({"mode": "x"}, "--mode"),
        ({"rows_per_second": -1}, "second"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(changes: dict[str, object], named: str) -> None:
    document = BackfillRequest(("a.b",)).to_json() | changes
    with pytest.raises(BackfillError) as caught:
        BackfillRequest.from_json(document).check()
    assert named in str(caught.value)


KEY = [KeyColumn("day", "date"), KeyColumn("n", "int"), KeyColumn("raw", "binary")]


def test_keys_are_written_with_commas_or_as_an_array() -> None:
    wanted = ["'2026-11-01'", "17", "x'0aff'"]
    assert parse_key("--from-key", "2026-11-01,17,0x0aff", KEY) == wanted
    assert parse_key("--from-key", '["2026-11-01", 17, "0x0aff"]', KEY) == wanted
    assert parse_key("--from-key", "", KEY) is None
    assert parse_key("--to-key", '["a,b\'c"]', [KeyColumn("s", "text")]) == ["'a,b''c'"]


@pytest.mark.parametrize("text", ["1", "2026-11-01,x,0x00", "2026-11-01,17,zz", "[1"])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BackfillError, match="--from-key"):
        parse_key("--from-key", text, KEY)


def table(index: Index | None, kinds: tuple[int, ...] = (8, 15)) -> Table:
    flag = FLAG_NOT_NULL | FLAG_PRIMARY_KEY
    columns = tuple(
        Column(n, f"c{n}", n, tp, flag, 20, charset="utf8mb4") for n, tp in enumerate(kinds)
    )
    return Table(1, 1, "s", "t", columns, (index,) if index else ())


def test_ranges_are_cut_by_the_key_that_both_sides_have() -> None:
    primary = Index(1, "PRIMARY", (("c1", 1, -1), ("c0", 0, -1)), unique=True, primary=True)
    assert [column.name for column in range_key(table(primary))] == ["c1", "c0"]
    prefix = Index(1, "PRIMARY", (("c1", 1, 5),), unique=True, primary=True)
    assert range_key(table(prefix)) == []
    assert range_key(table(None)) == []
    assert range_key(table(primary, (8, 5))) == []  # a DOUBLE is no bound


def test_chunks_follow_the_time_that_they_take() -> None:
    size = AdaptiveChunkSize(1000)
    size.took(1000, 100)
    assert size.rows == 2000
    size.took(2000, 800)
    assert size.rows == 500
    size.took(10, 5)  # the table's last rows say nothing
    assert size.rows == 500
    for _ in range(20):
        size.took(size.rows, 10_000)
    assert size.rows == 100
    for _ in range(20):
        size.was_late()
    assert size.rows == 100  # fewer rows are no quicker
    for _ in range(20):
        size.was_large()
    assert size.rows == 1
    size.was_late()
    assert size.rows == 1


def test_chunks_grow_again_though_a_condition_takes_none_of_their_rows() -> None:
    size = AdaptiveChunkSize(100)
    size.was_large()
    size.took(0, 5, is_selected=True)
    assert size.rows == 50
    for _ in range(20):
        size.took(1, 5, is_selected=True)
    assert size.rows == 50_000
    size.took(1, 800, is_selected=True)
    assert size.rows == 12_500


def test_a_rate_is_kept_and_not_saved_up() -> None:
    clock = [0.0]
    rate = RowRateLimiter(100, lambda: clock[0])
    assert rate.wait_s() == 0 and rate.limit(1000) == 100
    rate.used(100)
    assert rate.wait_s() == 1
    clock[0] = 50.0
    assert rate.wait_s() == 0
    rate.used(100)
    assert rate.wait_s() == 1
    assert RowRateLimiter(0).wait_s() == 0 and RowRateLimiter(0).limit(7) == 7
