"""The apply loop with its Spark job, against a real MariaDB."""

from __future__ import annotations

import threading
from pathlib import Path

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Spark, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences


def test_the_shop_recording_goes_through_spark_without_a_difference(
    mariadb: MariaDBServer, spark_remote: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/relay"
    relay = land(RECORDINGS / "shop", url, transactions=1500)
    last = relay.last()
    assert last is not None
    settings = Settings(
        Upstream("unused"),
        Relay(url),
        mariadb.downstream,
        spark=Spark(spark_remote),
        apply=Apply(max_rows=20_000),
    )
    reports = []
    summary = run_apply(settings, until_ts=last.hi, stop=threading.Event(), on_batch=reports.append)
    assert summary.checkpoint == last.hi
    assert summary.batches == len(reports) > 2
    assert summary.changes == 80_084
    assert differences(RECORDINGS / "shop", "e_end", mariadb) == []
