"""Tables without a key: of rows that are equal in every value exactly as many go as the upstream
removed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.changes.write_plans import _keyless_deletes as _rows_by_value
from sluice.etl.changes.write_plans import table_changes
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, table
from tests.examples import examples

_LONG = "long " * 1000
_COLUMNS = {
    "a int": [None, 0, 1, -7],
    "t varchar(20) collate utf8mb4_general_ci": [
        None,
        "",
        "a",
        "A",
        "a ",
        "é",
        "e",
        "'",
        "\\",
        "\t\n",
        "NULL",
    ],
    "f float": [None, 0.0, -0.0, 0.5, 1.100000023841858, 3.4028234663852886e38],
    "x double": [None, 0.0, 0.1, 1e300, -2.5],
    "m decimal(12,3)": [None, "0.000", "1.500", "-1.500"],
    "at datetime(6)": [None, "2026-01-01 00:00:00.000001", "0000-00-00 00:00:00.000000"],
    "l text": [None, "", _LONG, _LONG + "x", _LONG.upper()],
    "b varbinary(9)": [None, b"", b"\0", b"a", b"A", b"\xff\xfe"],
    "j json": [None, "{}", '{"a": 1}', "[1, 1.5]"],
    "e enum('x','y','X ')": [None, "x", "y", ""],
    "n bit(9)": [None, 0, 300],
}
ROW = st.tuples(*map(st.sampled_from, _COLUMNS.values()))
_NUMBERS = itertools.count(500)


def made(story: Story) -> Table:
    """A new table with a column of each of `_COLUMNS`."""
    number = next(_NUMBERS)
    return story.create(
        table(number, f"t{number}", *_COLUMNS), f"CREATE TABLE t{number} ({', '.join(_COLUMNS)})"
    )


def row_of(of: Table, number: int, values: tuple[object, ...]) -> Row:
    return {c.name: v for c, v in zip(of.columns, values, strict=True)} | {ROWID_NAME: number}


def found(story: Story, of: Table) -> Counter[tuple[object, ...]]:
    """An ENUM whose elements end with blanks is one of bytes downstream, which are read as text
    here.
    """
    forms = {"bit": "{}+0", "enum": "CONVERT({} USING utf8mb4)"}
    names = ", ".join(forms.get(c.kind, "{}").format(c.name) for c in of.columns)
    return Counter(tuple(map(_plain, row)) for row in story.rows(of.name, names))


def _plain(value: object) -> str | None:
    return (
        None
        if value is None
        else value.hex()
        if isinstance(value, bytes)
        else str(value).replace("-0.0", "0.0")
    )


def shown(of: Table, values: tuple[object, ...]) -> tuple[object, ...]:
    """As the server's client library gives them back."""
    told = []
    for column, value in zip(of.columns, values, strict=True):
        if isinstance(value, float) and column.kind == "float":
            value = {1.100000023841858: 1.1, 3.4028234663852886e38: 3.40282e38}.get(value, value)
        told.append(_plain(value))
    return tuple(told)


@pytest.fixture(scope="module")
def story(mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory) -> Story:
    mariadb_server.empty()
    return Story(mariadb_server, Path(tmp_path_factory.mktemp("story")))


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are listed however few they are."""
    monkeypatch.setattr(table_changes, "MIN_LISTED_ROWS", 1)
    monkeypatch.setattr(_rows_by_value, "_ROWS_A_STEP", 7)


@pytest.mark.usefixtures("listing")
@settings(
    max_examples=examples(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(pool=st.lists(ROW, min_size=1, max_size=12), data=st.data())
def test_as_many_equal_rows_go_as_the_upstream_removed(
    story: Story, pool: list[tuple[object, ...]], data: st.DataObject
) -> None:
    """The model is a list of rows."""
    of = made(story)
    rows = data.draw(st.lists(st.sampled_from(pool), max_size=40))
    there = dict(enumerate(rows, 1))
    story.changes(
        *((of, INSERT, encode_insert(of, row_of(of, n, values))) for n, values in there.items())
    )
    story.apply()
    for _ in range(2):
        changes = []
        for number in (
            data.draw(st.lists(st.sampled_from(list(there)), unique=True)) if there else []
        ):
            old = row_of(of, number, there[number])
            if data.draw(st.booleans()):
                del there[number]
                changes.append((of, DELETE, encode_delete(of, old)))
            else:
                there[number] = data.draw(st.sampled_from(pool))
                changes.append(
                    (of, UPDATE, encode_update(of, old, row_of(of, number, there[number])))
                )
        if changes:
            story.changes(*changes)
        story.apply()
        assert found(story, of) == Counter(shown(of, values) for values in there.values())
