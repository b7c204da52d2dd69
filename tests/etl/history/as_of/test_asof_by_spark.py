"""Tables of the past by Spark, out of an archive that Spark has made."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.cli.as_of import _write
from sluice.errors import RequestError
from sluice.etl.history.archive import NotYetLandedError, archive_through
from sluice.etl.history.as_of import (
    AsOfError,
    Fingerprint,
    PlanExecutor,
    SparkExecution,
    differences_between,
    fingerprint,
    run_locally,
    tables_as_of,
)
from sluice.etl.history.snapshots.plan import schemas_of, table_of
from sluice.etl.settings import Settings, Spark, parse_settings
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, ArchiveSnapshot, snapshot_id
from sluice.relay.storage import open_storage
from sluice.tidb import tso
from sluice.tidb.schema import Schema
from tests.etl.history.as_of.asking import labels
from tests.etl.history.as_of.test_asof_untouched import always
from tests.etl.relay_from_recording import RECORDINGS, land

NAME, FIRST, SECOND, MIDDLE, END = "ddl", "a_two_items", "b_item_changed", "d_many", "f_end"


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory, spark_remote: str) -> Settings:
    url = f"file://{tmp_path_factory.mktemp('relay')}"
    land(RECORDINGS / NAME, url, 100)
    settings = parse_settings(
        {
            "upstream": {"pd-urls": "http://127.0.0.1:1"},
            "relay": {"url": url},
            "downstream": {"host": "db"},
            "spark": {"remote": spark_remote},
        }
    )
    archive_through(settings)
    return settings


@pytest.fixture(scope="module")
def by_spark(spark_remote: str, archived: Settings) -> SparkExecution:
    """One session for all; every result comes by a file."""
    return SparkExecution(Spark(spark_remote), archived.archive_url, inline_bytes=0)


def _moment(settings: Settings, label: str) -> int:
    last = RelayLog.open(settings.relay.url).last()
    assert last is not None
    return min(int(labels(RECORDINGS / NAME)[label]["ts"]), last.hi)


@pytest.mark.slow
def test_spark_computes_what_one_process_does_and_goes_on_from_files_that_it_wrote(
    archived: Settings, by_spark: SparkExecution
) -> None:
    end = _moment(archived, END)
    local = tables_as_of(archived, end, ["*"], run=run_locally)
    expected = local.fingerprints()
    assert {name: found.rows for name, found in expected.items() if found.rows} == {
        name: rows for name, rows in labels(RECORDINGS / NAME)[END]["tables"].items() if rows
    }
    spark = tables_as_of(archived, end, ["*"], run=by_spark)
    rows: dict[str, Fingerprint] = dict.fromkeys(spark.tables, Fingerprint())
    for name, batch in spark.rows():
        rows[name] += fingerprint(spark.tables[name].table, [batch])
    assert rows == expected

    with _snapshot(archived, by_spark, "t") as name:
        gone_on = tables_as_of(archived, end, ["*"], run=run_locally)
        assert gone_on.snapshots == (name,)
        assert gone_on.fingerprints() == expected


@contextlib.contextmanager
def _snapshot(settings: Settings, run: PlanExecutor, suffix: str) -> Iterator[str]:
    """A snapshot in the middle, whose files `run` writes."""
    middle = _moment(settings, MIDDLE)
    older, name = tables_as_of(settings, middle, ["*"], run=run), snapshot_id(middle, suffix)
    files = older.files(f"snapshots/{name}")
    tables = tuple(
        replace(table_of(found.table), files=tuple(files[full]))
        for full, found in older.tables.items()
    )
    snapshots = Archive.open(settings.archive_url).snapshots
    snapshots.publish(
        ArchiveSnapshot(name, middle, 1, 7, 0, "a test", schemas_of([Schema(1, "shop")]), tables)
    )
    try:
        yield name
    finally:
        snapshots.forget(name)


@pytest.mark.slow
def test_spark_computes_rows_without_changes_where_it_reads_them(
    archived: Settings, by_spark: SparkExecution
) -> None:
    end = _moment(archived, END)
    with _snapshot(archived, run_locally, "u"):
        expected = tables_as_of(archived, end, ["*"], run=run_locally).fingerprints()
        with always():
            assert tables_as_of(archived, end, ["*"], run=by_spark).fingerprints() == expected
    assert open_storage(archived.archive_url).names("results") == []


@pytest.mark.slow
def test_what_hinders_in_a_worker_is_said_by_the_same_error(
    archived: Settings, by_spark: SparkExecution
) -> None:
    first, second = _moment(archived, FIRST), _moment(archived, SECOND)
    tables = tuple(
        table_of(found.table) for found in tables_as_of(archived, first, ["*"]).tables.values()
    )
    snapshots = Archive.open(archived.archive_url).snapshots
    without_rows = snapshots.publish(
        ArchiveSnapshot(snapshot_id(first, "w"), first, 1, 7, 0, "a test", (), tables)
    )
    try:
        with pytest.raises(
            AsOfError, match=r"at commit_ts \d+ a row is changed or removed though there is none"
        ):
            tables_as_of(archived, second, ["*"], run=by_spark).fingerprints()
    finally:
        snapshots.forget(without_rows.id)


@pytest.mark.slow
def test_the_command_writes_whole_files_and_shows_what_became_different(
    archived: Settings, tmp_path: Path
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(f"""
        [upstream]
        pd-urls = "http://127.0.0.1:1"
        [relay]
        url = "{archived.relay.url}"
        [spark]
        remote = "{archived.spark.remote}"
        [downstream]
        host = "db"
        """)
    first, second = _moment(archived, FIRST), _moment(archived, SECOND)
    run = CliRunner().invoke
    options = ["--config", str(config)]
    shown = run(group, ["as-of", "--diff", str(first), str(second), "shop.item", *options])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"shop\.item: \d+ differences\n  (inserted|deleted|changed) ", shown.output)

    scripts = run(group, ["as-of", str(first), "shop.item", "--json", *options])
    rows = [json.loads(line) for line in scripts.stdout.splitlines()]
    assert len(rows) == labels(RECORDINGS / NAME)[FIRST]["tables"]["shop.item"]
    assert {each["table"] for each in rows} == {"shop.item"} and "id" in rows[0]["row"]

    past, folder = tables_as_of(archived, first, ["shop.item"], run=run_locally), tmp_path / "out"
    _write(past, past.row_schemas(), past.rows(), "csv", folder)
    file = folder / "shop.item.csv"
    assert (
        len(file.read_text().splitlines())
        == 1 + labels(RECORDINGS / NAME)[FIRST]["tables"]["shop.item"]
    )
    again = run(
        group, ["as-of", str(first), "shop.item", "--format", "csv", "--to", str(folder), *options]
    )
    assert isinstance(again.exception, RequestError) and f"{file} exists" in str(again.exception)

    url = tmp_path.as_uri()
    command = ["as-of", str(first), "shop.item", "--format", "parquet", "--to", url, *options]
    assert run(group, command).exit_code == 0
    written = pq.read_table(tmp_path / "shop.item.parquet")
    table = past.tables["shop.item"].table
    assert fingerprint(table, written.to_batches()) == past.fingerprints()["shop.item"]
    again = run(group, command)
    assert isinstance(again.exception, RequestError) and "parquet exists" in str(again.exception)


@pytest.mark.slow
def test_what_isnt_there_is_named_with_what_made_or_removed_it(archived: Settings) -> None:
    log = Archive.open(archived.archive_url).log
    first, end = log.first(), _moment(archived, END)
    assert first is not None
    with pytest.raises(AsOfError, match=r"no table shop\.nosuch at"):
        tables_as_of(archived, end, ["shop.nosuch"], run=run_locally)
    with pytest.raises(
        AsOfError, match=r"no table shop\.\w+ at .* after that there is `CREATE TABLE"
    ):
        differences_between(archived, first.lo, end, ["shop.typ"], run=run_locally)
    with pytest.raises(NotYetLandedError):
        tables_as_of(archived, end + tso.span(60_000), ["*"], run=run_locally)
