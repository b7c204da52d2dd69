"""The data source and tables of the past in sessions of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sluice.devstack.launch.spark import java_home
from sluice.etl.history.archive import archive_through
from sluice.etl.settings import Settings
from sluice.etl.spark.session import close
from sluice.relay import RelayLog
from sluice.relay.consumers import Consumers, stream_consumer
from sluice.spark import register, tables_as_of
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.spark_fixture import SparkServer
from tests.spark.folded import differences, snapshot_of

LABEL = "b_mid"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A recording, of which the archive has the first half and the relay log all."""
    url = f"file://{tmp_path_factory.mktemp('relay')}"
    loaded = snapshot_of(RECORDINGS / "shop", "a_loaded")["ts"]
    land(RECORDINGS / "shop", url, 50, through=snapshot_of(RECORDINGS / "shop", "c_mid")["ts"])
    settings = settings_of(url)
    archive_through(settings, loaded, jobs=LocalJobs(settings))
    return settings


@pytest.fixture
def spark(spark_remote: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(spark_remote).create()
    register(session)
    yield session
    session.stop()


@pytest.mark.slow
def test_spark_sees_what_the_cluster_held_however_often_a_frame_is_used(
    shop: Settings, spark: SparkSession
) -> None:
    snapshot = snapshot_of(RECORDINGS / "shop", LABEL)
    reader = spark.read.format("sluice").option("relay", shop.relay.url)
    changes = reader.option("table", "bank.cart").option("until", str(snapshot["ts"])).load()
    # Spark would keep filters that the source takes over, and use them for what comes next, too
    assert {row["_op"] for row in changes.where("_op = 'delete'").collect()} == {"delete"}
    rows = [row.asDict() for row in changes.collect()]
    assert differences(rows, RECORDINGS / "shop", LABEL, "bank.cart") == []
    one = rows[len(rows) // 2]
    found = changes.where((changes["uid"] == one["uid"]) & changes["sku"].isin(one["sku"]))
    expected = [row for row in rows if (row["uid"], row["sku"]) == (one["uid"], one["sku"])]
    order = ("_commit_ts", "_pos", "_op")
    assert Counter(tuple(r[n] for n in order) for r in found.collect()) == Counter(
        tuple(r[n] for n in order) for r in expected
    )


def _start(spark: SparkSession, shop: Settings, folder: Path) -> Any:
    first = RelayLog.open(shop.relay.url).first()
    assert first is not None
    source = spark.readStream.format("sluice").option("relay", shop.relay.url)
    source = source.option("table", "bank.ledger").option("since", str(first.lo))
    source = source.option("maxRowsPerTrigger", "2500").option("consumer", "test")
    sink = source.load().writeStream.format("parquet").option("path", f"{folder}/rows")
    sink = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    return sink.start()


def _written(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each batch that the sink has committed."""
    batches: dict[str, int] = {}
    # now and then a document names the files of all batches before its own, too
    for log in (folder / "rows" / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            path, number = json.loads(line)["path"], int(log.name.split(".")[0])
            batches[path] = min(number, batches.get(path, number))
    found: dict[int, list[dict[str, Any]]] = {}
    for path, number in batches.items():
        rows = pq.read_table(path.removeprefix("file://")).to_pylist()
        found.setdefault(number, []).extend(rows)
    return found


@pytest.mark.slow
def test_a_stream_whose_server_is_killed_goes_on_with_each_transaction_once(
    shop: Settings, spark_server: SparkServer, tmp_path: Path
) -> None:
    commits = tmp_path / "checkpoint" / "commits"
    session = SparkSession.builder.remote(spark_server.remote).create()
    register(session)
    _start(session, shop, tmp_path)
    while len(list(commits.glob("[0-9]*"))) < 2:
        time.sleep(0.1)
    spark_server.kill()
    committed = len(list(commits.glob("[0-9]*")))
    close(session)
    spark_server.start()
    session = SparkSession.builder.remote(spark_server.remote).create()
    register(session)
    _start(session, shop, tmp_path).awaitTermination()
    written = _written(tmp_path)
    assert len(written) > committed  # else it had ended before
    expected = session.read.format("sluice").option("relay", shop.relay.url)
    expected = expected.option("table", "bank.ledger").load().select("_commit_ts", "_pos", "_op")
    rows = [row for batch in written.values() for row in batch]
    assert Counter((r["_commit_ts"], r["_pos"], r["_op"]) for r in rows) == Counter(
        map(tuple, expected.collect())
    )
    transactions = Counter(
        commit_ts for batch in written.values() for commit_ts in {r["_commit_ts"] for r in batch}
    )
    assert set(transactions.values()) == {1}
    offsets = [
        json.loads(path.read_text().splitlines()[-1])["tso"]
        for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    ]
    mark = stream_consumer("test", "bank.ledger")
    assert Consumers(RelayLog.open(shop.relay.url)).positions()[mark] in offsets
    session.stop()


@pytest.mark.slow
def test_tables_as_of_a_moment_are_frames_of_the_users_session(
    shop: Settings, spark: SparkSession
) -> None:
    snapshot = snapshot_of(RECORDINGS / "shop", "a_loaded")
    tables = tables_as_of(spark, snapshot["ts"], "bank.*", relay=shop.relay.url)
    assert {name: frame.count() for name, frame in tables.items()} == {
        name: rows for name, rows in snapshot["tables"].items() if name in tables
    }
    assert "bank.account" in tables


@pytest.mark.beyond_ci
@pytest.mark.slow
def test_a_classic_session_reads_the_same_changes_and_tables(
    shop: Settings, spark: SparkSession
) -> None:
    snapshot = snapshot_of(RECORDINGS / "shop", "a_loaded")
    words = [shop.relay.url, "bank.account", str(snapshot["ts"])]
    # a process that has a Connect session passes its mode on in variables
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.classic_session", *words],
        cwd=Path(__file__).resolve().parents[2],
        env=environment | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["count"] == snapshot["tables"]["bank.account"] > 0
    source = spark.read.format("sluice").option("relay", shop.relay.url)
    changes = source.option("table", "bank.account").option("until", words[2]).load()
    expected = changes.select("_op", "_commit_ts", "_pos").collect()
    assert Counter(map(tuple, found["changes"])) == Counter(map(tuple, expected))
