"""Random rows of every type are what they were when a random transaction is taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import DELETE, INSERT, UPDATE, RelayLog
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.history.undo.undoing import state, take_back, would_conflict
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table
from tests.examples import examples

Row = dict[str, Any]
WIDE = table(
    9,
    "wide",
    "id int",
    "a bigint unsigned",
    "b decimal(30,10)",
    "c varchar(20)",
    "d varbinary(20)",
    "e double",
    "f float",
    "g bit(20)",
    "h json",
    "i time(3)",
    "j datetime(6)",
    "k date",
    "l enum('x','y')",
    "m set('p','q')",
    "n year",
    primary="id",
    unique=("c",),
)
CREATE_WIDE = (
    "CREATE TABLE `wide` (`id` int PRIMARY KEY, `a` bigint unsigned, `b` decimal(30,10), `c`"
    " varchar(20), `d` varbinary(20), `e` double, `f` float, `g` bit(20), `h` json, `i` time(3),"
    " `j` datetime(6), `k` date, `l` enum('x','y'), `m` set('p','q'), `n` year, UNIQUE `u2` (`c`))"
)
LOOSE = replace(WIDE, id=10, name="loose", pk_is_handle=False, indexes=())
CREATE_LOOSE = (
    CREATE_WIDE.replace("`wide`", "`loose`")
    .replace(" PRIMARY KEY", "")
    .replace(", UNIQUE `u2` (`c`)", "")
)
TEXT = st.text(st.sampled_from("aA'\"\\\x00\n%é✓ "), max_size=6)
OTHERS = {
    "a": st.integers(0, 2**64 - 1),
    "b": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: f"{n}.0000000001"),
    "d": st.binary(max_size=6),
    "e": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0),
    "f": st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30),
    "g": st.integers(0, 2**20 - 1),
    "h": st.sampled_from(['{"a": 1}', "[]", '"\\\\"', "null", "1.5", '{"é": ["\'", null]}']),
    "i": st.sampled_from(["-838:59:59.000", "00:00:00.001", "838:59:59.000"]),
    "j": st.sampled_from(
        ["0000-00-00 00:00:00.000000", "2026-11-22 01:02:03.000004", "9999-12-31 23:59:59.999999"]
    ),
    "k": st.sampled_from(["0000-00-00", "2026-02-28", "2026-00-00"]),
    "l": st.sampled_from(["x", "y"]),
    "m": st.sampled_from(["", "p", "p,q"]),
    "n": st.sampled_from([0, 1901, 2155]),
}


@st.composite
def rows_and_changes(draw: st.DrawFn) -> tuple[list[Row], list[tuple[str, int, Row]]]:
    """Some rows, and changes of them in one transaction: (kind, place, new values)."""
    texts = draw(st.lists(TEXT, min_size=2, max_size=8, unique_by=lambda text: text.rstrip(" ")))
    values = st.fixed_dictionaries(
        {name: st.none() | strategy for name, strategy in OTHERS.items()}
    )
    rows = [{"id": n, "c": text} | draw(values) for n, text in enumerate(texts)]
    kinds = st.sampled_from(["delete", "update", "key", "insert"])
    return rows, [(draw(kinds), n, draw(values)) for n in range(len(rows))]


@settings(
    max_examples=examples(3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(told=rows_and_changes())
@pytest.mark.parametrize(
    ("of_table", "create"), [(WIDE, CREATE_WIDE), (LOOSE, CREATE_LOOSE)], ids=["key", "no key"]
)
def test_random_rows_are_what_they_were(
    mariadb_server: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    told: tuple[list[Row], list[tuple[str, int, Row]]],
    of_table: Table,
    create: str,
) -> None:
    mariadb_server.empty()
    story = Story(mariadb_server, tmp_path_factory.mktemp("undo"))
    rows, kinds = told
    story.create(of_table, create)
    story.insert(of_table, *rows)
    story.apply()
    before = state(mariadb_server, [f"d.{of_table.name}"])
    keys = [row["c"] for (kind, _, _), row in zip(kinds, rows, strict=True) if kind == "key"]
    swapped = iter([*keys[1:], *keys[:1]])
    changes = []
    for (kind, place, values), row in zip(kinds, rows, strict=True):
        if kind == "delete":
            changes.append((of_table, DELETE, encode_delete(of_table, row)))
        elif kind == "insert":
            new = {"id": place + 100, "c": None, "_tidb_rowid": place + 1000} | values
            changes.append((of_table, INSERT, encode_insert(of_table, new)))
        else:
            new = row | values | ({"c": next(swapped)} if kind == "key" else {})
            changes.append((of_table, UPDATE, encode_update(of_table, row, new)))
    story.changes(*changes)
    story.apply()
    config = Settings(Upstream("unused"), Relay(story.url), mariadb_server.downstream)
    last = RelayLog.open(story.url).last()
    assert last is not None
    accident = last.hi
    note(f"{rows} {kinds}")
    dry = would_conflict(config, accident)
    assert (dry.count, dry.conflicts) == (0, [])
    undone, expected = take_back(mariadb_server, config, accident)
    assert undone == expected
    assert state(mariadb_server, [f"d.{of_table.name}"]) == before
