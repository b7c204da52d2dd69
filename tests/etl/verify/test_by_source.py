"""Sources of a merged table that a column keeps apart are copied, compared and repaired alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import Filter, Route, Routes
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.plan import CopyPlan, make_copy_plan
from sluice.etl.copy.shared_keys import MAX_STEPS, shared_keys
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.verify import range_compare as comparing
from sluice.etl.verify import table_compare
from sluice.etl.verify.live_rows import open_live_rows
from sluice.tidb.schema import Table
from tests.etl.copy.copying import CLUSTER
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.verify.test_merged import MERGED, ONE, RULE, SAME, TWO, Known, merged, ran

BY_SOURCE = replace(RULE, source_column="origin")


def names(rows: Any) -> list[int]:
    return sorted(rows["id"].to_pylist())


@pytest.mark.slow
def test_sources_with_the_same_keys_are_compared_alone_and_what_differs_is_found(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_compare, "RANGE_BYTES", 4096)
    monkeypatch.setattr(comparing, "ROWS_PER_READ", 10)
    with merged(mariadb, tmp_path, ONE, SAME, TWO, rule=BY_SOURCE) as replica:
        found = replica.compare()
        assert {name: (one.found.rows, one.found.apart) for name, one in found.items()} == {
            ONE.full_name: (150, None), SAME.full_name: (150, None), TWO.full_name: (150, None),
        }  # fmt: skip
        ran(
            mariadb,
            [
                f"UPDATE {MERGED} SET v = 'V7' WHERE id = 7 AND origin = '{SAME.full_name}'",
                f"DELETE FROM {MERGED} WHERE id = 9 AND origin = '{ONE.full_name}'",
                f"INSERT INTO {MERGED} (id, v, origin) VALUES (500, 'x', '{TWO.full_name}')",
            ],
        )
        found = replica.compare()
        differing = {
            name: (names(one.found.apart.come), names(one.found.apart.gone))
            for name, one in found.items()
            if one.found.apart is not None
        }
        assert differing == {
            SAME.full_name: ([7], [7]), ONE.full_name: ([9], []), TWO.full_name: ([], [500]),
        }  # fmt: skip
        with open_live_rows(replica.settings, CLUSTER, Known(replica), 10) as rows:
            live = {
                table.full_name: rows.compare(table, "").apart.count
                for table in rows.tables.values()
            }
            assert live == {
                ONE.full_name: 1, SAME.full_name: 1, TWO.full_name: 1,
            }  # fmt: skip
            key = range_key(ONE)
            assert rows.key_behind(ONE, key, (None, None), 10) == ["10"]


@pytest.mark.slow
def test_tables_that_share_a_key_are_named_before_they_are_copied_into_one(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    def plan(*tables: Table, rule: Route = RULE) -> CopyPlan:
        with merged(mariadb, tmp_path, *tables, rule=rule, copies=False) as made:
            source, known = TidbSql(made.address, made.known.ts), made.known
            return make_copy_plan(source, known, Filter(), Routes((rule,)))

    (problem,) = plan(ONE, TWO, SAME).problems
    assert "d.orders_1 and d.orders_6 have both a row with the key (id) = (0)" in problem
    assert "source-column" in problem
    assert not plan(ONE, TWO).problems and not plan(ONE, SAME, rule=BY_SOURCE).problems


def test_two_tables_are_walked_from_key_to_key() -> None:
    def told(*keys: list[int]) -> tuple[str | None, int]:
        asked: list[str] = []

        def query(statement: str) -> list[tuple[bytes | None, ...]]:
            asked.append(statement)
            own = keys["`orders_2`" in statement]
            low = int(found[1]) if (found := re.search(r"`id` >= (-?\d+)", statement)) else None
            return [(str(key).encode(),) for key in own if low is None or key >= low][:1]

        shared = [one.key for one in shared_keys(query, [ONE, TWO])]
        return (shared or [None])[0], len(asked)

    assert told([*range(100)], [*range(100, 200)]) == (None, 3)
    assert told([*range(100)], [*range(50, 99, 7)]) == ("50", 3)
    assert told([1, 3, 5, 8], [2, 4, 8]) == ("8", 7)
    assert told([], [1]) == (None, 1) and told([1], []) == (None, 2)
    evens = told([*range(0, 1000, 2)], [*range(1, 1000, 2)])
    assert evens == ("", MAX_STEPS)  # unknown
