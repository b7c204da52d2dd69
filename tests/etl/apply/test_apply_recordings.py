"""Recordings of a real cluster, prepared and applied to a real MariaDB, compared with what the
cluster held.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.changes.rules import Filter, NameRule
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences


def replay(
    server: MariaDBServer,
    folder: Path,
    name: str,
    label: str,
    transactions: int,
    apply: Apply | None = None,
    filters: Filter | None = None,
) -> ApplySummary:
    """Apply a recording up to a snapshot."""
    ts = next(
        s["ts"]
        for s in json.loads((RECORDINGS / name / "snapshots.json").read_text())
        if s["label"] == label
    )
    url = f"file://{folder}/relay"
    relay = land(RECORDINGS / name, url, transactions, through=ts)
    last = relay.last()
    assert last is not None
    settings = Settings(
        Upstream("unused"),
        Relay(url),
        server.downstream,
        apply=apply or Apply(),
        filters=filters or Filter(),
    )
    return run_apply(settings, until_ts=last.hi, run_seconds=120, prepare=local_preparer(settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "transactions", "max_rows"),
    [pytest.param("b_mid", 97, 500, marks=pytest.mark.slow), ("e_end", 1000, 20_000)],
)
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_bank_and_shop_under_concurrent_writers(
    mariadb: MariaDBServer, tmp_path: Path, label: str, transactions: int, max_rows: int, mode: str
) -> None:
    summary = replay(
        mariadb, tmp_path, "shop", label, transactions, Apply(mode=mode, max_rows=max_rows)
    )
    assert summary.batches > 1
    assert differences(RECORDINGS / "shop", label, mariadb) == []


@pytest.mark.slow
@pytest.mark.parametrize("label", ["c_renamed", "f_end"])
def test_schema_changes_of_most_kinds(mariadb: MariaDBServer, tmp_path: Path, label: str) -> None:
    replay(mariadb, tmp_path, "ddl", label, 40)
    assert differences(RECORDINGS / "ddl", label, mariadb) == []


def test_every_type_and_key_shape(mariadb: MariaDBServer, tmp_path: Path) -> None:
    (label,) = (path.name for path in (RECORDINGS / "types" / "snapshots").iterdir())
    summary = replay(mariadb, tmp_path, "types", label, 7)
    assert differences(RECORDINGS / "types", label, mariadb) == []
    assert any("types.expr" in warning and "left out" in warning for warning in summary.warnings)
    told = any(
        "types.gpk" in warning and "unique key instead" in warning for warning in summary.warnings
    )
    assert told == (not mariadb.dialect.generated_primary_keys)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_keys_and_partitions_dropped_while_four_sessions_need_them_gone(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    """Duplicates before the DDL binlog that allows them.

    Rows written to partitions that are gone, and kept though theirs is dropped. All in one or two
    windows; `test_apply_edges` has small ones.
    """
    names = ("pr", "dp", "du")
    filters = Filter(do_tables=tuple(NameRule("Edges", name, name) for name in names))
    replay(mariadb, tmp_path, "edges", "e_constraints", 4000, Apply(mode=mode), filters)
    found = differences(RECORDINGS / "edges", "e_constraints", mariadb)
    assert [
        line for line in found if line.startswith(tuple(f"Edges.{name}:" for name in names))
    ] == []


@pytest.mark.quick_cases("parallel-b_end")
@pytest.mark.parametrize("label", ["a_keys", "b_end"])
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_cluster_without_new_collations_tells_case_and_trailing_blanks_apart(
    mariadb: MariaDBServer, tmp_path: Path, mode: str, label: str
) -> None:
    replay(mariadb, tmp_path, "oldcoll", label, 100, Apply(mode=mode))
    found = differences(RECORDINGS / "oldcoll", label, mariadb)
    assert [line for line in found if not line.startswith("oldc.p:")] == []
    # The store that was recorded read NULL where this table's clustered key is: there only the
    # other columns can be compared.
    head, *lines = map(
        json.loads,
        (RECORDINGS / "oldcoll" / "snapshots" / label / "oldc.p.jsonl").read_text().splitlines(),
    )
    assert {row[0] for row in lines} == {None}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(head['columns'][1:])} FROM oldc.p")
        got = [
            [None if value is None else str(value) for value in row] for row in cursor.fetchall()
        ]
        assert sorted(got, key=repr) == sorted((row[1:] for row in lines), key=repr)
        cursor.execute("SELECT k FROM oldc.p")
        assert {"strasse", "straße"} <= {k for (k,) in cursor.fetchall()}


def test_every_collation_of_a_cluster_without_new_ones_compares_bytes_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """Whatever statement brings it: CREATE, ADD, MODIFY, CONVERT TO, a database's default."""
    replay(mariadb, tmp_path, "oldcoll", "b_end", 100)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA ="
            " 'oldc' AND COLLATION_NAME IS NOT NULL"
        )
        # No TiDB has this collation: it stands for the server's binary one that doesn't pad.
        wanted = mariadb.dialect.collation("utf8mb4_nopad_bin")
        assert cursor.fetchall() == ((wanted,),)
        cursor.execute(
            "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME ="
            " 'oldc'"
        )
        assert cursor.fetchall() == ((wanted,),)
