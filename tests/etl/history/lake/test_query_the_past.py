"""The examples of docs/how-to/query-the-past.md, typed as they stand there."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sluice.etl.history.lake import live_files, write_lake
from sluice.relay.storage import open_storage
from tests.etl.history.lake.told_lake import ToldLake
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import table

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "query-the-past.md").read_text(
    encoding="utf-8"
)
ACCOUNT = replace(
    table(
        41,
        "account",
        "id int not null",
        "owner varchar(20)",
        "balance decimal(12,2)",
        "opened date",
        primary="id",
    ),
    schema_name="shop",
)
WIDER = replace(
    table(
        41,
        "account",
        *(
            "id int not null",
            "owner varchar(20)",
            "balance decimal(12,2)",
            "opened date",
            "note text",
        ),
        primary="id",
    ),
    schema_name="shop",
)
"""As it is from the second day on: versions lie beside each other."""
SQL = re.findall(r"^( *)```sql\n(.*?)\n *```\n+ *```text\n(.*?)\n *```", PAGE, re.S | re.M)
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def _row(number: int, owner: str, balance: str, opened: str) -> dict[str, Any]:
    return {"id": number, "owner": owner, "balance": balance, "opened": opened}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> ToldLake:
    told = ToldLake(tmp_path_factory.mktemp("past"))
    ada, bob = _row(1, "ada", "100.00", "2026-01-31"), _row(2, "bob", "50.00", "0000-00-00")
    eve = _row(3, "eve", "20.00", "2026-11-21")
    ada_then, bob_then = ada | {"balance": "70.00"}, bob | {"balance": "80.00"}
    told.changes(
        datetime(2026, 11, 21, 9, tzinfo=UTC),
        ACCOUNT,
        [(None, ada), (None, bob), (None, eve)],
        together=True,
    )
    told.changes(
        datetime(2026, 11, 22, 9, tzinfo=UTC),
        WIDER,
        [(ada, ada_then), (bob, bob_then)],
        version=9,
        together=True,
    )
    accident = [(row, None) for row in (ada_then, bob_then, eve)]
    told.changes(datetime(2026, 11, 22, 10, tzinfo=UTC), WIDER, accident, version=9, together=True)
    return told


@pytest.fixture(scope="module")
def spark(spark_remote: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(spark_remote).create()
    yield session
    session.stop()


def test_the_page_has_examples_and_its_table_two_versions(lake: ToldLake) -> None:
    versions = sorted(path.name for path in (lake.folder / "lake" / "shop.account").iterdir())
    assert versions == ["schema_version=7", "schema_version=9"]
    assert len(SQL) == 6 and len(PYTHON) == 3


@pytest.mark.parametrize("example", range(len(SQL)))
def test_duckdb_answers_what_the_page_says(lake: ToldLake, example: int) -> None:
    indent, statements, answer = SQL[example]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        result = connection.execute(_here(statements, lake))
        rows = [
            " | ".join("NULL" if value is None else str(value) for value in row)
            for row in result.fetchall()
        ]
    expected = [line.removeprefix(indent) for line in answer.splitlines()]
    assert [
        re.sub(r"(\.\d{3})000$|(\.\d{3})000 ", r"\1\2 ", row).rstrip() for row in rows
    ] == expected


@pytest.mark.slow
@pytest.mark.parametrize("example", range(len(PYTHON)))
def test_python_answers_what_the_page_says(
    lake: ToldLake, spark: SparkSession, example: int
) -> None:
    text = _here(PYTHON[example], lake)
    test = doctest.DocTestParser().get_doctest(
        text, {"spark": spark}, f"example {example}", None, None
    )
    shown: list[str] = []
    doctest.DocTestRunner().run(test, out=shown.append)
    assert shown == []


def test_duckdb_and_python_agree_which_files_count_while_both_are_there(lake: ToldLake) -> None:
    lake.compacted()
    try:
        pattern = f"{lake.folder}/lake/*/*/*/*.parquet"
        macro = _here(SQL[-1][1], lake).partition("SET VARIABLE")[0]
        with duckdb.connect() as connection:
            connection.execute(macro)
            found = [
                row[0]
                for row in connection.execute(f"SELECT file FROM live('{pattern}')").fetchall()
            ]
        everything = [str(path) for path in lake.folder.glob("lake/*/*/*/*.parquet")]
        assert sorted(found) == sorted(live_files(everything))
        assert len(found) < len(everything)
    finally:
        for path in lake.folder.glob("lake/*/*/*/*-compacted.parquet"):
            path.unlink()


@pytest.mark.slow
def test_spark_reads_every_type_as_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    relay = land(RECORDINGS / "types", f"file://{tmp_path}/relay")
    first = relay.first()
    assert first is not None
    (tmp_path / "archive").mkdir()
    files = write_lake(
        relay.storage,
        open_storage(f"file://{tmp_path}/archive"),
        list(relay.windows(first.lo)),
        "t",
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    chosen = [
        file
        for file in files
        if file.table in ("times", "decs", "ints", "strs", "pk_bit", "gen", "we`ird 名")
    ]
    assert len(chosen) == 7
    for file in chosen:
        expected = pq.ParquetFile(tmp_path / "archive" / file.path).read()
        folder = Path(file.path).parents[2]
        read = (
            spark.read.parquet(str(tmp_path / "archive" / folder))
            .drop("day", "schema_version")
            .toArrow()
        )
        assert read.column_names == expected.column_names
        assert _told(read) == _told(expected), file.table


def _told(rows: pa.Table) -> list[str]:
    def plain(value: Any) -> Any:
        return value.astimezone(UTC).isoformat() if getattr(value, "tzinfo", None) else value

    return sorted(
        repr({name: plain(value) for name, value in row.items()}) for row in rows.to_pylist()
    )


def _here(text: str, lake: ToldLake) -> str:
    return text.replace("/data/sluice/archive", str(lake.folder))
