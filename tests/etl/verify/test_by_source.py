"""Sources of a merged table that a column keeps apart are copied, compared and repaired alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.verify import range_compare as comparing
from sluice.etl.verify import table_compare
from sluice.etl.verify.live_rows import open_live_rows
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
