"""Rows and the images of changes: what goes, what comes, and what contradicts what is there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.history.as_of import AsOfError
from sluice.etl.history.as_of.advance import COMMIT_TS_COLUMN, PLACE_COLUMN, apply_changes, schema
from sluice.etl.history.as_of.versions import TableVersion
from tests.etl.history.as_of.asking import plain
from tests.etl.story import table

KEYED = TableVersion.from_table(table(1, "k", "id int", "v int", primary="id"), frozenset())
PLAIN = TableVersion.from_table(table(2, "p", "t varchar(9)", "f float"), frozenset())


def rows(version: TableVersion, *values: tuple[Any, ...]) -> pa.Table:
    names = [column.name for column in version.columns]
    return pa.Table.from_pylist([dict(zip(names, row)) for row in values], schema(version.columns))


def images(version: TableVersion, *changes: tuple[str, tuple[Any, ...]]) -> pa.Table:
    """ "-" and a row that goes, or "+" and one that comes."""
    found = rows(version, *(row for _, row in changes))
    places = [2 * n + (sign == "+") for n, (sign, _) in enumerate(changes)]
    found = found.append_column(PLACE_COLUMN, pa.array(places, pa.int64()))
    return found.append_column(
        COMMIT_TS_COLUMN, pa.array(range(100, 100 + len(changes)), pa.int64())
    )


def test_the_last_image_of_a_clustered_key_is_what_is_there() -> None:
    before = rows(KEYED, (1, 1), (2, 2), (3, 3))
    changes = images(
        KEYED,
        ("-", (1, None)),
        ("+", (1, 10)),
        ("-", (2, None)),
        ("+", (4, 4)),
        ("-", (4, None)),
        ("+", (2, 5)),
    )
    assert plain(apply_changes(KEYED, before, changes)) == [(1, 10), (2, 5), (3, 3)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("+", (1, 5)),
            "k: at commit_ts 101 a row is written though there is one of its key: id=1",
        ),
        (
            ("-", (7, None)),
            "k: at commit_ts 101 a row is changed or removed though there is none: id=7",
        ),
    ],
)
def test_a_change_of_a_key_that_doesnt_fit_is_named_with_its_transaction(
    change: Any, said: str
) -> None:
    before = rows(KEYED, (1, 1), (2, 2))
    with pytest.raises(AsOfError, match=said):
        apply_changes(KEYED, before, images(KEYED, ("+", (9, 9)), change))


def test_a_snapshot_with_a_key_twice_is_refused_when_something_changes() -> None:
    with pytest.raises(AsOfError, match="two rows have the key id=2"):
        apply_changes(KEYED, rows(KEYED, (2, 1), (2, 2)), images(KEYED, ("+", (9, 9))))


def test_of_equal_rows_as_many_go_as_are_removed_whatever_the_order() -> None:
    before = rows(PLAIN, ("a", 1.5), ("a", 1.5), ("b", None))
    gone = images(
        PLAIN,
        ("-", ("c", 2.5)),
        ("-", ("a", 1.5)),
        ("+", ("c", 2.5)),
        ("+", ("c", 2.5)),
        ("-", ("b", None)),
    )
    assert plain(apply_changes(PLAIN, before, gone)) == [("a", 1.5), ("c", 2.5)]
    with pytest.raises(
        AsOfError,
        match=r"p: at commit_ts 102 a row is changed or removed though there is none: t=a, f=1\.5",
    ):
        apply_changes(PLAIN, before, images(PLAIN, *[("-", ("a", 1.5))] * 3))


def test_a_float_of_which_a_snapshot_has_six_digits_is_found_by_everything_else() -> None:
    before = rows(PLAIN, ("a", 3.40282e38), ("a", 1.0))
    changes = images(PLAIN, ("-", ("a", 3.4028234663852886e38)), ("+", ("a", 2.0)))
    assert plain(apply_changes(PLAIN, before, changes)) == [("a", 1.0), ("a", 2.0)]
    with pytest.raises(AsOfError, match="there is none: t=b"):
        apply_changes(PLAIN, before, images(PLAIN, ("-", ("b", 3.4028234663852886e38))))
