"""The examples of docs/how-to/spark.md, run as they stand there."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from sluice.etl.history.archive import archive_through
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord
from sluice.spark import register
from sluice.tidb.ddl_job import DdlEffect
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from sluice.tidb.tso import from_datetime
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.history.lake.test_query_the_past import ACCOUNT, WIDER, _row

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark.md").read_text()
YESTERDAY, A_DAY, UPSERT, HISTORY = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
MERGE, MERGE_HISTORY = re.findall(r"^```sql\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a settings file, and a relay log and an archive of two days."""
    folder = tmp_path_factory.mktemp("page")
    ada, bob = _row(1, "ada", "100.00", "2026-01-31"), _row(2, "bob", "50.00", "0000-00-00")
    eve = _row(3, "eve", "20.00", "2026-11-21")
    ada_then, bob_then = ada | {"balance": "70.00"}, bob | {"balance": "80.00"}
    relay = RelayLog.open(f"file://{folder}/relay")
    day = datetime(2026, 11, 21, 9, tzinfo=UTC)
    _land(relay, day, ACCOUNT, [(None, ada), (None, bob), (None, eve)], None)
    _land(relay, day.replace(day=22), WIDER, [(ada, ada_then), (bob, bob_then)], ACCOUNT)
    _land(relay, day.replace(day=22, hour=10), WIDER, [(eve, None)], WIDER)
    pipeline = settings_of(relay.url)
    archive_through(pipeline, jobs=LocalJobs(pipeline))
    (folder / "sluice.toml").write_text(
        f"""
        [upstream]
        pd-urls = "http://127.0.0.1:1"
        [relay]
        url = "{relay.url}"
        [downstream]
        host = "db"
        """
    )
    return folder


def _land(
    relay: RelayLog, moment: datetime, of: Table, changes: Sequence[Any], before: Table | None
) -> None:
    """Land a window with the DDL that makes the table `of`, if it wasn't so `before`.

    And one transaction, a millisecond after `moment`.
    """
    last = relay.last()
    lo = last.hi if last else from_datetime(moment.replace(hour=0)) - 1
    commit_ts = from_datetime(moment) + (1 << 18)
    rows = [_encoded(of, old, new) for old, new in changes]
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "commit_ts": commit_ts,
                "start_ts": commit_ts - 1,
                "position": number,
                "table_id": of.id,
                "schema_version": 7,
                "kind": kind,
                "row": row,
            }
            for number, (kind, row) in enumerate(rows)
        ],
        PART_SCHEMA,
    )
    hi = commit_ts + (1 << 18)
    part = relay.write_part(lo, hi, "t", 0, [batch])
    assert part is not None
    ddl = {
        "commit_ts": commit_ts - 10,
        "start_ts": commit_ts - 11,
        "job_id": commit_ts % 1000,
        "query": "CREATE TABLE account" if before is None else "ALTER TABLE account ADD note",
        "schema_state": 5,
        "type": 3 if before is None else 5,
        "schema_version": 7,
        "schema_name": "shop",
        "table_name": "account",
        "effect": DdlEffect({}, {of.id: of}).to_json(),
    }
    tables = {str(of.id): before.to_json()} if before else {}
    ddls = () if before == of else (ddl,)
    relay.commit(WindowRecord(lo, hi, 7, "t", 0, 1, len(rows), 7, (part,), tables, ddls))


def _encoded(of: Table, old: Any, new: Any) -> tuple[int, bytes]:
    if old is None:
        return INSERT, encode_insert(of, new)
    return (
        (DELETE, encode_delete(of, old)) if new is None else (UPDATE, encode_update(of, old, new))
    )


@pytest.fixture(scope="module")
def spark(spark_remote: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(spark_remote).create()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def names(place: Path, spark: SparkSession) -> dict[str, Any]:
    """What the examples know: the session, functions, and what those before have defined."""
    names = {"spark": spark}
    register(spark)  # as the first example does, which may run in another process
    exec("from pyspark.sql import functions as F", names)
    return names


def _catalog(place: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{place}/catalog.db",
        "warehouse": f"file://{place}/warehouse",
    }


def _run(example: str, place: Path, names: dict[str, Any]) -> str:
    code = example.replace("/etc/sluice/sluice.toml", f"{place}/sluice.toml")
    code = code.replace('"/data/lake', f'"{place}/lake')
    code = code.replace(
        'load_catalog("lakehouse")', f'load_catalog("lakehouse", **{_catalog(place)})'
    )
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(code, "docs/how-to/spark.md", "exec"), names)
    return shown.getvalue()


@pytest.mark.slow
def test_a_notebook_sees_what_happened_in_a_day(place: Path, names: dict[str, Any]) -> None:
    shown = _run(YESTERDAY, place, names)
    counts = dict(re.findall(r"\|\s*(\w+)\|\s*(\d+)\|", shown))
    assert counts == {"update_postimage": "2", "update_preimage": "2"}
    balances = re.findall(r"\|\s*(update_\w+)\|\s*([\d.]+)\|", shown.partition("balance")[2])
    assert sorted(balances) == [("update_postimage", "70.00"), ("update_preimage", "100.00")]


@pytest.mark.slow
def test_a_table_a_day_is_written_as_it_was(place: Path, names: dict[str, Any]) -> None:
    _run(A_DAY, place, names)
    rows = pq.read_table(f"{place}/lake/account/day=2026-11-22").select(["id", "balance"])
    assert sorted((row["id"], str(row["balance"])) for row in rows.to_pylist()) == [
        (1, "70.00"),
        (2, "80.00"),
        (3, "20.00"),
    ]


@pytest.mark.slow
def test_the_history_of_each_row_has_the_times_between_which_it_held(
    place: Path, names: dict[str, Any]
) -> None:
    since = '.option("since", "2026-11-22T00:00:00Z")\n    .option("until", "2026-11-22T10:00:00Z")'
    assert since in YESTERDAY
    _run(YESTERDAY.replace(since, '.option("since", "2026-11-21T00:00:00Z")'), place, names)
    _run(HISTORY, place, names)
    rows = names["spark"].read.parquet(f"{place}/lake/account_history").collect()
    first, second, third = (
        datetime(2026, 11, day, hour, 0, 0, 1000) for day, hour in ((21, 9), (22, 9), (22, 10))
    )
    assert sorted((r["id"], str(r["balance"]), r["valid_from"], r["valid_to"]) for r in rows) == [
        (1, "100.00", first, second),
        (1, "70.00", second, None),
        (2, "50.00", first, second),
        (2, "80.00", second, None),
        (3, "20.00", first, third),
    ]


@pytest.mark.slow
def test_a_replica_in_the_lake_house_follows_and_a_batch_may_come_again(
    place: Path, names: dict[str, Any]
) -> None:
    catalog = load_catalog("lakehouse", **_catalog(place))
    catalog.create_namespace("shop")
    table = catalog.create_table(
        "shop.account",
        pa.schema([("id", pa.int64()), ("owner", pa.string()), ("balance", pa.decimal128(12, 2))]),
    )
    expected = [(1, "ada", "70.00"), (2, "bob", "80.00")]
    for _ in range(2):  # the second time without its checkpoint
        _run(UPSERT, place, names)
        rows = table.refresh().scan().to_arrow().to_pylist()
        assert sorted((r["id"], r["owner"], str(r["balance"])) for r in rows) == expected
        shutil.rmtree(f"{place}/lake/checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize("statement", [MERGE, MERGE_HISTORY], ids=["type 1", "type 2"])
def test_spark_understands_the_merge(statement: str, place: Path, spark: SparkSession) -> None:
    row = "id", "'a' AS owner", "1.5 AS balance", "id AS from_ts", "now() AS valid_from"
    view = spark.range(1).selectExpr(*row, "now() AS valid_to", "id AS _commit_ts")
    view = view.selectExpr("*", "now() AS _commit_time", "'delete' AS _op")
    for name in ("last", "batch", "states", "v"):
        view.createOrReplaceTempView(name)
    table = "account_history" if statement is MERGE_HISTORY else "account"
    spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT * FROM v")
    try:
        with pytest.raises(Exception) as refused:
            spark.sql(statement).collect()
        assert not isinstance(refused.value, ParseException)
        assert "MERGE" in str(refused.value)
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_the_merges_give_the_rows_and_their_history_also_of_a_batch_that_comes_twice() -> None:
    duck = duckdb.connect()
    columns = "id BIGINT, owner TEXT, balance BIGINT"
    duck.sql(f"CREATE TABLE account ({columns})")
    times = "from_ts BIGINT, valid_from BIGINT, valid_to BIGINT"
    duck.sql(f"CREATE TABLE account_history ({columns}, {times})")
    duck.sql(f"CREATE TABLE batch ({columns}, _op TEXT, _commit_ts BIGINT, _commit_time BIGINT)")
    puts = "_op IN ('insert', 'update_postimage')"
    order = f"PARTITION BY id ORDER BY _commit_ts, {puts}"
    duck.sql(f"CREATE VIEW last AS FROM batch QUALIFY lead(id) OVER ({order}) IS NULL")
    ended = f"SELECT *, lead(_commit_time) OVER ({order}) AS valid_to FROM batch"
    state = "id, owner, balance, _commit_ts AS from_ts, _commit_time AS valid_from, valid_to"
    duck.sql(f"CREATE VIEW states AS SELECT {state} FROM ({ended}) WHERE {puts}")
    old, new = "update_preimage", "update_postimage"
    batches = [
        [(1, 100, "insert", 10), (2, 50, "insert", 10), (3, 20, "insert", 10)],
        [(1, 100, old, 20), (1, 70, new, 20), (1, 70, old, 25), (1, 60, new, 25)],
        [(2, 50, old, 30), (4, 50, new, 30), (3, 20, "delete", 30)],  # 2 became 4
    ]
    for batch in [each for each in batches for _ in range(2)]:
        duck.sql("TRUNCATE batch")
        rows = [(key, "x", balance, op, at, at) for key, balance, op, at in batch]
        duck.executemany("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?)", rows)
        for statement in (MERGE, MERGE_HISTORY):  # DuckDB takes no name before those that are set
            duck.sql(statement.replace("SET t.", "SET ").replace(", t.balance =", ", balance ="))
    found = duck.sql("SELECT id, balance FROM account ORDER BY id").fetchall()
    assert found == [(1, 60), (4, 50)]
    kept = "SELECT id, balance, valid_from, valid_to FROM account_history ORDER BY id, from_ts"
    assert duck.sql(kept).fetchall() == [
        (1, 100, 10, 20),
        (1, 70, 20, 25),
        (1, 60, 25, None),
        (2, 50, 10, 30),
        (3, 20, 10, 30),
        (4, 50, 30, None),
    ]
